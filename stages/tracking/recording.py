"""The stage's hold on its recorder process: start it, start it again if it dies, wait for it a little at the end."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stages.tracking.outbox import Outbox

WAIT_SECONDS = 10.0  # at the end of a stage; after that the recorder goes on alone
MOST_RESTARTS = 3


class Recording:
    """A recorder at work on `outbox`, in a session of its own: neither Ctrl-C nor the end of the stage reaches it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._restarts = outbox, 0
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with (self._outbox.folder.parents[1] / "recorder.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "stages.tracking.recorder", str(self._outbox.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).resolve().parents[2],
                start_new_session=True,
            )

    def check(self) -> None:
        """Start a new recorder when this one has died; it goes on where that one stopped."""
        if self._process.poll() is not None and self._restarts < MOST_RESTARTS:
            self._restarts += 1
            self._close()
            self._process = self._start()

    def wait(self) -> list[str]:
        """Tell the recorder that the stage is over, wait for it, and return what a person should know."""
        began = time.monotonic()
        self.check()
        try:
            out, _ = self._process.communicate(timeout=WAIT_SECONDS)
            result = json.loads(out or b"{}")
        except subprocess.TimeoutExpired:
            self._close()
            return [f"MLflow has not answered for {time.monotonic() - began:.0f} s; {self._left()} in the background"]
        except ValueError:
            result = {}
        if not result or result.get("gave_up"):
            log = self._outbox.folder.parents[1] / "recorder.log"
            return [f"not everything reached MLflow ({log}); {self._left()} by the next command, or now: python -m stages.replay"]
        return _news(result)

    def _left(self) -> str:
        """How much is still to be sent, and from where."""
        written, sent = self._outbox.points(), int(self._outbox.delivered().get("points", 0))
        return f"{max(written - sent, 0)} of {written} points wait in {self._outbox.folder} and are sent"

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


def _news(result: dict[str, Any]) -> list[str]:
    """What the recorder did besides its work."""
    lines = [*result.get("replayed", ()), *(f"run {name} was RUNNING though its process is gone; it is KILLED now" for name in result.get("repaired", ()))]
    if result.get("refused"):
        lines.append(f"MLflow refused {result['refused']} points")
    return lines + [f"MLflow refused: {reason}" for reason in result.get("refusals", ())]
