"""The process that tells MLflow what a stage's outbox holds: it outlives its stage, an outage and its own death lose nothing."""

import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from stages.tracking import lineage, processes
from stages.tracking.delivery import Delivery, GaveUp, Patience, Stores, say
from stages.tracking.outbox import Outbox, replace_text, take, waiting
from stages.tracking.redact import clean

BATCH_SECONDS = 2.0  # between two deliveries of a running stage
LOG_SECONDS = 60.0  # between two uploads of what it prints
PATIENCE_SECONDS = 300.0  # for a store that does not answer, after the stage has ended
REPLAY_PATIENCE_SECONDS = 5.0  # for the outboxes of earlier stages, which can wait for the next command


def replay(stores: Stores, before: str = "~", patience: Patience | None = None) -> list[str]:
    """Deliver the outboxes older than `before` that nobody delivers; returns one line for each. Stops where the store does not answer."""
    patience, done = patience or Patience(REPLAY_PATIENCE_SECONDS), []
    for outbox in waiting(stores.home):
        lock = outbox.lock()
        if outbox.folder.name >= before or not take(lock):
            continue
        try:
            done += _replay(outbox, stores, patience)
        finally:
            outbox.unlock(lock)
    return done


def _replay(outbox: Outbox, stores: Stores, patience: Patience) -> list[str]:
    """Deliver one outbox whose stage is over; what cannot be understood is put aside."""
    opening = outbox.opening()
    if opening is not None and processes.alive(opening["process"]):
        return []
    delivery = Delivery(outbox, stores, patience)
    before = delivery.state["points"]
    try:
        while delivery.step():
            pass
        delivery.finish()
    except GaveUp:
        raise
    except Exception as error:  # noqa: BLE001  one bad outbox must not stop the others
        say(f"{outbox.folder.name}: {type(error).__name__}: {error}")
        outbox.set_aside()
        return [f"{outbox.folder.name} could not be sent and lies in .underbudget/refused"]
    outbox.remove()
    return [f"sent late: {delivery.state['points'] - before} points of {opening['stage']}, run {opening['name']}"] if opening else []


def await_earlier(outbox: Outbox, home: Path, key: str, patience: Patience) -> None:
    """Wait for recorders of earlier stages of the same experiment that are still at it, so that its stages arrive in order."""
    for earlier in waiting(home):
        opening = earlier.opening() if earlier.folder.name < outbox.folder.name else None
        if opening is None or opening["key"] != key or processes.alive(opening["process"]):
            continue
        lock = earlier.lock()
        while not take(lock):
            patience.check()
            time.sleep(0.2)
        earlier.unlock(lock)


def follow(outbox: Outbox, living: "Living", stores: Stores) -> dict[str, Any]:
    """Deliver a living stage's outbox until the stage ends; returns what to tell its person."""
    patience = Patience(PATIENCE_SECONDS, living.ended)
    opening = living.opening()
    if opening is None:  # it died before its first word
        outbox.remove()
        return {}
    replayed: list[str] = []
    with contextlib.suppress(GaveUp):
        replayed = replay(stores, before=outbox.folder.name)
    await_earlier(outbox, stores.home, opening["key"], patience)
    delivery = Delivery(outbox, stores, patience)
    next_log = time.monotonic() + LOG_SECONDS
    while not living.wait(BATCH_SECONDS):
        delivery.step()
        if time.monotonic() > next_log:
            delivery.upload_log()
            next_log = time.monotonic() + LOG_SECONDS
    while delivery.step():
        pass
    delivery.finish()
    outbox.remove()
    return {**delivery.state, "repaired": stores.repaired, "replayed": replayed}


class Living:
    """Whether the stage at the other end of standard input is there: it holds the pipe open, and no child of its own keeps it so."""

    def __init__(self, outbox: Outbox, pipe: int) -> None:
        self._outbox, self._pipe, self._closed = outbox, pipe, False

    def opening(self) -> dict[str, Any] | None:
        """The stage's first event; None when it ended without one."""
        while (opening := self._outbox.opening()) is None and not self._closed:
            self.wait(0.05)
        return opening

    def wait(self, seconds: float) -> bool:
        """True as soon as the stage has ended, False after `seconds`."""
        if not self.ended():
            select.select([self._pipe], [], [], seconds)
        return self.ended()

    def ended(self) -> bool:
        """Whether the stage has closed its end or died."""
        if not self._closed and select.select([self._pipe], [], [], 0)[0]:
            self._closed = os.read(self._pipe, 1) == b""
        if not self._closed:
            opening = self._outbox.opening()
            self._closed = opening is not None and not processes.alive(opening["process"])
        return self._closed


def main(folder: str) -> None:
    """Deliver the outbox `folder`; standard output gets one object of JSON for the stage."""
    outbox = Outbox(Path(folder))
    home = outbox.folder.parents[1]
    os.chdir(home.parent)  # where a relative MLFLOW_TRACKING_URI points, and a folder that outlives a temporary copy
    with outbox.lock():
        replace_text(outbox.files / "environment.txt", clean(lineage.environment()))
        result: dict[str, Any] = {"gave_up": True}
        with contextlib.suppress(GaveUp):
            result = follow(outbox, Living(outbox, sys.stdin.fileno()), Stores(home))
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        os.write(1, json.dumps(result).encode())


if __name__ == "__main__":
    main(sys.argv[1])
