"""Brings one outbox to MLflow, from where the last delivery stopped, however often the store has to be asked."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from stages.tracking import curves
from stages.tracking.outbox import Event, Outbox, replace_text
from stages.tracking.redact import clean
from stages.tracking.store import Claim, Joined, Metric, Store, permanent

LONGEST_PAUSE_SECONDS = 20.0
LOG_HEAD_BYTES, LOG_TAIL_BYTES = 1 << 20, 8 << 20  # of what a stage printed; the middle of more is left out
T = TypeVar("T")


class GaveUp(Exception):  # noqa: N818
    """The store did not answer in time; the outbox stays for the next command."""


class Patience:
    """How long to go on asking a store that does not answer: `seconds`, counted from when `counts` first says so."""

    def __init__(self, seconds: float, counts: Callable[[], bool] = lambda: True) -> None:
        self._seconds, self._counts, self._deadline = seconds, counts, float("inf")

    def check(self) -> None:
        """Raises GaveUp when it is over."""
        if self._deadline == float("inf") and self._counts():
            self._deadline = time.monotonic() + self._seconds
        if time.monotonic() >= self._deadline:
            raise GaveUp


def insist(call: Callable[[], T], patience: Patience) -> T:
    """Call until it succeeds; raises GaveUp when patience is over, and at once what no repetition mends."""
    pause = 0.2
    while True:
        try:
            return call()
        except Exception as error:
            if permanent(error):
                raise
            say(f"{type(error).__name__}: {error}")
        patience.check()
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class Stores:
    """The stores in use by experiment, since opening one takes a second or two. Opening one repairs its stale runs."""

    def __init__(self, home: Path) -> None:
        self.home, self.repaired = home, list[str]()
        self._open: dict[str, Store] = {}

    def get(self, experiment: str) -> Store:
        """The experiment's store."""
        if experiment not in self._open:
            store = Store(self.home, experiment)
            self.repaired += store.repair()
            self._open[experiment] = store
        return self._open[experiment]


class Delivery:
    """One outbox on its way."""

    def __init__(self, outbox: Outbox, stores: Stores, patience: Patience) -> None:
        self.outbox, self._stores, self._patience = outbox, stores, patience
        self.state: Event = {"offset": 0, "points": 0, "refused": 0, "refusals": [], "run_id": None, "end": None, "late": False, **outbox.delivered()}
        self._opening: Event = {}
        self._joined: Joined | None = None
        self._points: list[Metric] = []
        self._logged_bytes = 0

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
        """The stage has ended, by its own word or by dying: say so in the run, and give the run its status."""
        if self.outbox.opening() is None:
            return
        self._join()
        end = self.state["end"] or {"status": "KILLED", "milliseconds": int(time.time() * 1000), "tags": {}}
        self.upload_log()
        self._tell(lambda store, run: store.end_stage(run, self._claim(), end["status"], end["milliseconds"], end["tags"]))

    def upload_log(self) -> None:
        """Bring what the stage has printed so far into the run, if that has grown."""
        size = self.outbox.log.stat().st_size if self.outbox.log.is_file() else 0
        if size == self._logged_bytes or self._joined is None:
            return
        self._logged_bytes = size
        path = self.outbox.files / f"{self._opening['stage']}.log"
        replace_text(path, clean(_ends_of(self.outbox.log, size)))
        self._tell(lambda store, run: store.artifact(run, path, "logs"))

    def _take(self, event: Event) -> None:
        kind = event["event"]
        self._join()
        if kind == "point":
            self._points += [(name, value, event["milliseconds"], event["step"]) for name, value in event["values"].items() if not self._known(name, event)]
        elif kind == "end":
            self.state["end"] = event
        elif kind in ("tags", "note", "file", "fill"):
            self._flush()
            getattr(self, f"_{kind}")(event)

    def _known(self, name: str, event: Event) -> bool:
        """Whether an earlier try of the same stage has logged this step."""
        assert self._joined
        return bool(event["curve"]) and event["step"] <= self._joined.steps.get(name, -1)

    def _flush(self) -> None:
        points, self._points = self._points, []
        if points:
            taken = self._tell(lambda store, run: store.metrics(run, points))
            self.state["points" if taken else "refused"] += len(points)

    def _claim(self) -> Claim:
        return Claim(**{name: self._opening[name] for name in ("key", "stage", "name", "process", "dvc", "workspace", "closing")})

    def _join(self) -> None:
        """Find or open the run, once, and tell it where the stage came from."""
        if self._joined is not None:
            return
        opening = self._opening = self.outbox.opening() or {}
        run_id = self.state["run_id"]
        self._joined = insist(lambda: self._store().join(self._claim(), run_id), self._patience)
        self.state["run_id"] = self._joined.run_id
        self.outbox.acknowledge(self.state)
        self._tell(lambda store, run: store.describe(run, opening["params"], opening["tags"]))
        if opening["dataset"]:
            self._tell(lambda store, run: store.dataset(run, opening["dataset"]))
        if (self.outbox.files / "environment.txt").is_file():
            self._tell(lambda store, run: store.artifact(run, self.outbox.files / "environment.txt"))

    def _store(self) -> Store:
        return self._stores.get(self._opening["experiment"])

    def _tags(self, event: Event) -> None:
        self._tell(lambda store, run: store.describe(run, {}, event["values"]))

    def _note(self, event: Event) -> None:
        self._tell(lambda store, run: store.describe(run, {}, {"mlflow.note.content": event["text"]}))

    def _file(self, event: Event) -> None:
        self._tell(lambda store, run: store.artifact(run, self.outbox.files / event["path"], event["folder"]))

    def _fill(self, event: Event) -> None:
        """Figures, curves and files of a stage that DVC took from its cache, unless the stage itself has logged them in this run."""
        joined = self._joined
        assert joined
        status = insist(lambda: self._store().stage_tags(joined.run_id), self._patience).get(event["stage"])
        if status == "FINISHED":
            return
        points = [(name, value, event["milliseconds"], 0) for name, value in event["values"].items()]
        for path, folder in event["files"]:
            self._file({"path": path, "folder": folder})
        for path, prefix in event["curves"]:
            points += _curve_points(self.outbox.files / path, prefix, event["milliseconds"])
        self._tell(lambda store, run: store.metrics(run, points))
        self._tell(lambda store, run: store.describe(run, {}, {f"stage.{event['stage']}": "CACHED"}))

    def _tell(self, call: Callable[[Store, str], object]) -> bool:
        """Call until MLflow takes it; False when it never will, which is remembered."""
        joined = self._joined
        assert joined
        try:
            insist(lambda: call(self._store(), joined.run_id), self._patience)
        except GaveUp:
            raise
        except Exception as error:
            if not permanent(error):
                raise
            say(f"refused: {error}")
            self.state["refusals"] = [*self.state["refusals"], clean(str(error))[:300]][-20:]
            return False
        return True


def _curve_points(path: Path, prefix: str, milliseconds: int) -> list[Metric]:
    """The points of a curve's file; its column `step` places them."""
    points = []
    for row in curves.rows(path):
        step = row.pop("step", None)
        if isinstance(step, float):
            points += [(f"{prefix}{name}", value, milliseconds, int(step)) for name, value in row.items() if isinstance(value, float)]
    return points


def _ends_of(log: Path, size: int) -> str:
    """A log as text, without the middle of a huge one."""
    with log.open("rb") as file:
        if size <= LOG_HEAD_BYTES + LOG_TAIL_BYTES:
            return file.read().decode("utf-8", "replace")
        head = file.read(LOG_HEAD_BYTES)
        file.seek(size - LOG_TAIL_BYTES)
        cut = f"\n... {size - LOG_HEAD_BYTES - LOG_TAIL_BYTES} bytes are left out here ...\n".encode()
        return (head + cut + file.read()).decode("utf-8", "replace")


def say(line: str) -> None:
    """A line in the recorder's own log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {clean(line)[:500]}", file=sys.stderr, flush=True)
