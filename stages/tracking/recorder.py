"""The process that tells MLflow what a stage's outbox holds: it outlives its stage, an outage and its own death lose nothing."""

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stages.tracking import curves, lineage, processes
from stages.tracking.outbox import Event, Outbox, replace_text, take, waiting
from stages.tracking.store import Claim, Joined, Metric, Store, permanent

BATCH_SECONDS = 2.0  # between two deliveries of a running stage
PATIENCE_SECONDS = 300.0  # how long to go on after the stage has ended
LONGEST_PAUSE_SECONDS = 20.0
T = TypeVar("T")


class GaveUp(Exception):  # noqa: N818
    """The store did not answer in time; the outbox stays for the next command."""


class Delivery:
    """Brings one outbox to MLflow, from where the last delivery stopped."""

    def __init__(self, outbox: Outbox, home: Path, *, patience: float, ended: Callable[[], bool]) -> None:
        self.outbox, self.home, self.patience, self.ended = outbox, home, patience, ended
        self.state: Event = {"offset": 0, "points": 0, "refused": 0, "refusals": [], **outbox.delivered()}
        self.store: Store | None = None
        self.joined: Joined | None = None
        self.final: Event | None = None
        self.repaired: list[str] = []
        self._deadline: float | None = None
        self._points: list[Metric] = []
        self._open: Event = {}

    def step(self) -> bool:
        """Deliver what there is; False when there was nothing."""
        events, offset = self.outbox.read(self.state["offset"])
        for event in events:
            self._take(event)
        self._flush()
        if events:
            self.state["offset"] = offset
            self.outbox.acknowledge(self.state)
        return bool(events)

    def finish(self) -> None:
        """The stage has ended, by its own word or by dying: give the run its status."""
        if self.joined is None:
            return
        final = self.final or {"status": "KILLED", "tags": {}, "milliseconds": _now()}
        closing = self._open["closing"] and final["status"] == "FINISHED"
        tags = {f"stage.{self._open['stage']}": final["status"], **final["tags"], **({"closed": "true"} if closing else {})}
        self._upload_log()
        self._tell(lambda store, run: store.tags(run, tags))
        status = "SCHEDULED" if final["status"] == "FINISHED" and not closing else final["status"]
        self._tell(lambda store, run: store.finish(run, status, final["milliseconds"]))

    def _take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "open":
            self._join(event)
        elif self.joined is None:
            self._join(self.outbox.opening() or {})
        if kind == "point":
            self._points += [point for name, value in event["values"].items() if (point := self._point(name, value, event))]
        elif kind in ("tags", "note", "file", "fill"):
            self._flush()
            getattr(self, f"_{kind}")(event)
        elif kind == "end":
            self.final = event

    def _point(self, name: str, value: float, event: Event) -> Metric | None:
        """A point for MLflow; None for a step that an earlier try of the same stage has logged."""
        assert self.joined
        last = self.joined.steps.get(name)
        if last is not None and event["step"] <= last and event["curve"]:
            return None
        return name, value, event["milliseconds"], event["step"]

    def _flush(self) -> None:
        points, self._points = self._points, []
        if points:
            done = self._tell(lambda store, run: store.metrics(run, points))
            self.state["points" if done else "refused"] += len(points)

    def _join(self, event: Event) -> None:
        """Find or open the run, then tell where it came from."""
        self._open = event
        claim = Claim(**{name: event[name] for name in ("key", "stage", "name", "process", "dvc", "workspace", "closing")})
        self.joined = self._try(lambda: self._connected().join(claim))
        assert self.joined
        self.state["run_id"] = self.joined.run_id
        self._tell(lambda store, run: store.params(run, event["params"]))
        self._tell(lambda store, run: store.tags(run, event["tags"]))
        if event["dataset"]:
            self._tell(lambda store, run: store.dataset(run, event["dataset"]))

    def _connected(self) -> Store:
        if self.store is None:
            self.store = Store(self.home, self._open["experiment"])
            self.repaired += self.store.repair()
        return self.store

    def _tags(self, event: Event) -> None:
        self._tell(lambda store, run: store.tags(run, event["values"]))

    def _note(self, event: Event) -> None:
        self._tell(lambda store, run: store.tags(run, {"mlflow.note.content": event["text"]}))

    def _file(self, event: Event) -> None:
        self._tell(lambda store, run: store.artifact(run, self.outbox.files / event["path"], event["folder"]))

    def _fill(self, event: Event) -> None:
        """Figures and curves of a stage that DVC took from its cache, unless the stage itself has logged them in this run."""
        statuses = self._tell(lambda store, run: store.stage_tags(run)) or {}
        if statuses.get(event["stage"]) == "FINISHED":
            return
        when = event["milliseconds"]
        points = [(name, value, when, 0) for name, value in event["values"].items()]
        for prefix, path in event["curves"]:
            for row in curves.rows(self.outbox.files / path):
                step = int(float(row.pop("step") or 0))
                points += [(prefix + name, value, when, step) for name, value in row.items() if isinstance(value, float)]
        self._tell(lambda store, run: store.metrics(run, points))
        self._tell(lambda store, run: store.tags(run, {f"stage.{event['stage']}": "CACHED"}))

    def _upload_log(self) -> None:
        if self.outbox.log.is_file() and self.outbox.log.stat().st_size:
            path = self.outbox.files / f"{self._open['stage']}.log"
            with contextlib.suppress(OSError):
                replace_text(path, self.outbox.log.read_text("utf-8", "replace"))
            self._tell(lambda store, run: store.artifact(run, path, "logs"))

    def _tell(self, call: Callable[[Store, str], T]) -> T | bool:
        """Call until MLflow takes it or will never take it; False in the second case, which is remembered."""
        joined = self.joined
        assert joined
        try:
            result = self._try(lambda: call(self._connected(), joined.run_id))
        except Exception as error:
            if not permanent(error):
                raise
            self.state["refusals"] = [*self.state["refusals"], str(error)[:300]][-20:]
            return False
        return True if result is None else result

    def _try(self, call: Callable[[], T]) -> T:
        """Call until it succeeds; raises GaveUp when the stage is long over, and at once what no repetition mends."""
        pause = 0.2
        while True:
            try:
                return call()
            except Exception as error:
                if permanent(error):
                    raise
                _say(f"{type(error).__name__}: {str(error)[:500]}")
                self._check_patience()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _check_patience(self) -> None:
        if self._deadline is None and self.ended():
            self._deadline = time.monotonic() + self.patience
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise GaveUp


def replay(home: Path, before: Outbox | None = None, patience: float = 5.0) -> list[str]:
    """Deliver the outboxes that nobody delivers, the oldest first; returns what was done, one line each."""
    done = []
    for outbox in waiting(home):
        if before is not None and outbox.folder.name >= before.folder.name:
            break
        lock, opening = outbox.lock(), outbox.opening()
        if not take(lock):
            continue
        try:
            if opening is None or not processes.alive(opening["process"]):
                done += _replay_one(outbox, home, opening, patience)
        finally:
            lock.release()
    return done


def _replay_one(outbox: Outbox, home: Path, opening: Event | None, patience: float) -> list[str]:
    if opening is None:
        outbox.remove()
        return []
    delivery = Delivery(outbox, home, patience=patience, ended=lambda: True)
    while delivery.step():
        pass
    delivery.finish()
    outbox.remove()
    return [f"{opening['stage']} of {opening['name']}: {delivery.state['points']} points sent late"]


def follow(outbox: Outbox, home: Path) -> dict[str, Any]:
    """Deliver a living stage's outbox until the stage ends; returns what to tell its person."""
    living = Living(outbox)
    delivery = Delivery(outbox, home, patience=PATIENCE_SECONDS, ended=living.ended)
    with contextlib.suppress(GaveUp):
        replayed = replay(home, before=outbox)
    while not living.wait(BATCH_SECONDS):
        delivery.step()
    while delivery.step():
        pass
    delivery.finish()
    outbox.remove()
    return {**delivery.state, "repaired": delivery.repaired, "replayed": replayed}


class Living:
    """Whether the stage at the other end of standard input is there: it holds the pipe open, and no child of its own keeps it so."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._closed = outbox, False

    def wait(self, seconds: float) -> bool:
        """True as soon as the stage has ended, False after `seconds`."""
        if not self.ended():
            select.select([sys.stdin.fileno()], [], [], seconds)
        return self.ended()

    def ended(self) -> bool:
        """Whether the stage has closed its end or died."""
        if not self._closed and select.select([sys.stdin.fileno()], [], [], 0)[0]:
            self._closed = os.read(sys.stdin.fileno(), 1) == b""
        if not self._closed:
            opening = self._outbox.opening()
            self._closed = opening is not None and not processes.alive(opening["process"])
        return self._closed


def _now() -> int:
    return int(time.time() * 1000)


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main(folder: str) -> None:
    """Deliver the outbox `folder`; standard output gets one line of JSON for the stage."""
    outbox = Outbox(Path(folder))
    home = outbox.folder.parents[1]
    os.chdir(home.parent)
    with outbox.lock():
        replace_text(outbox.files / "environment.txt", lineage.environment())
        try:
            result = follow(outbox, home)
        except GaveUp:
            result = {"gave_up": True}
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        os.write(1, json.dumps(result).encode())


if __name__ == "__main__":
    main(sys.argv[1])
