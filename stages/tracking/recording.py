"""The stage's hold on its recorder: start one when none is there, and wait for it a little at the end."""

import subprocess
import sys
import time
from pathlib import Path

from stages.tracking.delivery import refusals
from stages.tracking.outbox import Outbox, take
from stages.tracking.recorder import lock_of

WAIT_SECONDS = 10.0  # at the end of the last stage, or of a failed one; after that the recorder goes on alone
TROUBLED_SECONDS = 2.0  # where MLflow does not answer
MOST_STARTS = 4
POLL_SECONDS = 0.03


class Recording:
    """What the stage sees of the process that serves its family, in a session of its own: neither Ctrl-C nor the end of the stage reaches it."""

    def __init__(self, outbox: Outbox, family: str) -> None:
        self._outbox, self._family, self._starts = outbox, family, 0
        self._home = outbox.home
        self._process: subprocess.Popen[bytes] | None = None
        self.check()

    def check(self) -> None:
        """Start a recorder when there is none; it goes on where the one before stopped."""
        if self._process is not None and self._process.poll() is None:
            return
        lock = lock_of(self._home, self._family)
        if self._starts >= MOST_STARTS or not take(lock):
            return
        lock.release()
        self._starts += 1
        with (self._home / "recorder.log").open("ab") as log:
            command = [sys.executable, "-m", "stages.tracking.recorder", str(self._home), self._family]
            package = Path(__file__).resolve().parents[2]
            nothing = subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=log, cwd=package, start_new_session=True)

    def pass_on(self) -> list[str]:
        """Others of the command follow, while which the recorder goes on: nothing to wait for. Returns what a person should know."""
        self.check()
        trouble = self._outbox.delivered().get("trouble", "")
        return [self._late(trouble)] if trouble else []

    def wait(self) -> list[str]:
        """Wait until everything is in MLflow, within bounds; returns what a person should know."""
        self.check()
        began, troubled = time.monotonic(), 0.0
        while not (state := self._outbox.delivered()).get("finished"):
            now = time.monotonic()
            troubled = (troubled or now) if state.get("trouble") else 0.0
            if now - began > WAIT_SECONDS or (troubled and now - troubled > TROUBLED_SECONDS):
                return [self._late(state.get("trouble", ""))]
            time.sleep(POLL_SECONDS)
        return [*state["news"], *refusals(state)]

    def _late(self, trouble: str) -> str:
        """How much is still to be sent, and how that comes about."""
        written, sent = self._outbox.points(), int(self._outbox.delivered().get("points", 0))
        left = f"{max(written - sent, 0)} of {written} points are not there yet"
        if trouble:
            return f"MLflow does not answer ({trouble}); {left}. They are kept and sent by the next command, or by: python -m stages.replay"
        if not written:
            return f"MLflow needs longer than {WAIT_SECONDS:.0f} s; how this ended is sent in the background"
        return f"MLflow needs longer than {WAIT_SECONDS:.0f} s; {left} and are sent in the background"
