"""The process that tells MLflow what stages leave in their outboxes: it outlives its stage, and an outage or its own death loses nothing.

One recorder serves all stages of a DVC command, one after the other, so that only the first waits for MLflow's imports; it ends with that command.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from filelock import FileLock

from stages.tracking import lineage, processes
from stages.tracking.delivery import Delivery, Stores, refusals, say
from stages.tracking.outbox import Event, Outbox, replace_text, take, waiting
from stages.tracking.redact import clean

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 300.0  # for a store that does not answer, once nobody is left to work for
LONGEST_PAUSE_SECONDS = 15.0
POISONED_AFTER = 3  # failures in a row of one outbox, while the store answers


class Recorder:
    """Delivers the outboxes of one family of stages, and those that a dead stage has left."""

    def __init__(self, home: Path, family: str) -> None:
        self.home, self.family, self.stores = home, family, Stores(home)
        self.news: list[str] = []
        self._deliveries: dict[str, Delivery] = {}
        self._locks: dict[str, FileLock] = {}
        self._failures: dict[str, int] = {}
        self._held_back = False

    def round(self) -> bool:
        """Give every outbox its turn, the oldest first; False when the store does not answer."""
        self._held_back = False
        for outbox in waiting(self.home):
            delivery = self._delivery(outbox)
            if delivery is not None and not self._deliver(delivery):
                return False
        return True

    @property
    def busy(self) -> bool:
        """Whether something is still to be delivered."""
        return self._held_back or any(not delivery.state["finished"] for delivery in self._deliveries.values())

    def serve(self) -> None:
        """Rounds until nobody is left to work for."""
        pause, alone_since = POLL_SECONDS, float("inf")
        while True:
            answered = self.round()
            pause = POLL_SECONDS if answered else min(2 * pause, LONGEST_PAUSE_SECONDS)
            alone = not self._employed()
            if alone and (answered and not self.busy):
                break
            alone_since = min(alone_since, time.monotonic()) if alone else float("inf")
            if time.monotonic() - alone_since > PATIENCE_SECONDS:
                break
            time.sleep(pause)
        self.close()

    def close(self) -> None:
        """Let go of every outbox."""
        for name, lock in self._locks.items():
            Outbox(self.home / "outbox" / name).unlock(lock)

    def _employed(self) -> bool:
        """Whether more may come: the DVC command lives, or a stage does."""
        return processes.alive(self.family) or any(processes.alive(delivery.opening["process"]) for delivery in self._deliveries.values())

    def _delivery(self, outbox: Outbox) -> Delivery | None:
        """The outbox's delivery, if it is ours to deliver: of our family or of a dead stage, and in nobody else's hands."""
        name = outbox.folder.name
        if name in self._deliveries:
            return self._deliveries[name]
        opening = outbox.opening()
        if opening is None:
            self._clear(outbox)
            return None
        if not self._is_family(opening) and processes.alive(opening["process"]):
            return None
        if self._waits(outbox, opening) or not take(lock := outbox.lock()):
            self._held_back = True
            return None
        self._locks[name], self._deliveries[name] = lock, Delivery(outbox, opening, self.stores)
        return self._deliveries[name]

    def _is_family(self, opening: Event) -> bool:
        return self.family in (opening["dvc"], opening["process"])

    def _waits(self, outbox: Outbox, opening: Event) -> bool:
        """Whether another recorder is still at an earlier stage of the same experiment: its stages must arrive in order."""
        for earlier in waiting(self.home):
            name = earlier.folder.name
            if name >= outbox.folder.name:
                return False
            found = None if name in self._deliveries else earlier.opening()
            if found and found["key"] == opening["key"] and not processes.alive(found["process"]):
                return True
        return False

    def _clear(self, outbox: Outbox) -> None:
        """Remove the outbox of a stage that died before its first word; put one aside whose first word is damaged."""
        if processes.alive(outbox.owner()):
            return
        if outbox.read(0)[1]:
            self.news.append(f"{outbox.folder.name} is damaged and lies in {outbox.set_aside()}")
        else:
            outbox.remove()

    def _deliver(self, delivery: Delivery) -> bool:
        """Its turn; False when the store does not answer."""
        name = delivery.outbox.folder.name
        try:
            if not delivery.state["finished"]:
                delivery.advance()
                self._tell_news(delivery)
            self._failures.pop(name, None)
            self._bury(delivery)
        except Exception as error:  # noqa: BLE001  whatever a store raises, the stage's words are kept
            say(f"{name}: {type(error).__name__}: {error}")
            return self._failed(delivery, f"{type(error).__name__}: {error}")
        return True

    def _tell_news(self, delivery: Delivery) -> None:
        """What a person should know goes out with the next stage that ends."""
        self.news += [f"run {name} was RUNNING though its process is gone; it is KILLED now" for name in self.stores.repaired]
        self.stores.repaired.clear()
        opening, state = delivery.opening, delivery.state
        if not state["finished"]:
            return
        if state["end"] is None:
            self.news.append(f"{opening['stage']} of run {opening['name']} died; the run is KILLED, with its {state['points']} points")
        elif not self._is_family(opening):
            self.news.append(f"{opening['stage']} of run {opening['name']} was not sent completely; its {state['points']} points are in MLflow now")
        if state["end"] is not None and state["end"]["waits"] and processes.alive(opening["process"]):
            state["news"], self.news = self.news, []
            delivery.outbox.acknowledge(state)
        else:
            self.news += [f"{opening['stage']}: {line}" for line in refusals(state)]

    def _bury(self, delivery: Delivery) -> None:
        """Remove an outbox that is delivered and that its stage no longer looks at."""
        name = delivery.outbox.folder.name
        if delivery.state["finished"] and not processes.alive(delivery.opening["process"]):
            delivery.outbox.remove()
            delivery.outbox.unlock(self._locks.pop(name))
            del self._deliveries[name]

    def _failed(self, delivery: Delivery, reason: str) -> bool:
        """Whether the fault lies in this outbox alone: then it is put aside in the end. Otherwise the store does not answer."""
        name = delivery.outbox.folder.name
        if not self.stores.answers(delivery.opening["experiment"]):
            delivery.trouble(reason)
            return False
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] >= POISONED_AFTER and delivery.over:
            self.news.append(f"{name} could not be sent ({clean(reason)[:200]}) and lies in {delivery.outbox.set_aside()}")
            delivery.outbox.unlock(self._locks.pop(name))
            del self._deliveries[name]
        return True


def lock_of(home: Path, family: str) -> FileLock:
    """Held by the family's recorder while it lives."""
    return FileLock(home / f"recorder-{processes.short(family)}.lock", thread_local=False)


def main(home: Path, family: str) -> None:
    """Serve `family`: a DVC command, or one stage without such a parent. Ends at once when that one has a recorder."""
    with contextlib.suppress(OSError):
        os.nice(10)  # the training comes first
    os.chdir(home.parent)  # where a relative MLFLOW_TRACKING_URI points, and a folder that outlives a temporary copy
    lock = lock_of(home, family)
    if not take(lock):
        return
    replace_text(home / "environment.txt", clean(lineage.environment()))
    try:
        Recorder(home, family).serve()
    finally:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
