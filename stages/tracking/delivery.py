"""Brings one outbox to MLflow from where the last delivery stopped; a store that does not answer raises, and everything can be said again."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.tracking import curves, processes
from stages.tracking.claims import Claim, Joined
from stages.tracking.outbox import Event, Outbox, replace_text
from stages.tracking.redact import clean, secret_names
from stages.tracking.store import Metric, Store, permanent

BATCH_SECONDS = 2.0  # between two deliveries of a running stage
LOG_SECONDS = 60.0  # between two uploads of what it prints
START: Event = {"offset": 0, "points": 0, "refused": 0, "refusals": [], "run_id": None, "end": None, "finished": False, "trouble": "", "news": []}


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

    def answers(self, experiment: str) -> bool:
        """Whether the experiment's store can be read now."""
        try:
            self.get(experiment).ping()
        except Exception as error:  # noqa: BLE001  of whatever kind: it does not answer
            say(f"{type(error).__name__}: {error}")
            return False
        return True


class Delivery:
    """One outbox on its way. `state` is what the stage can read of it: how many points have arrived, whether all is done."""

    def __init__(self, outbox: Outbox, opening: Event, stores: Stores) -> None:
        self.outbox, self.opening, self._stores = outbox, opening, stores
        self.state: Event = {**START, **outbox.delivered()}
        self._joined: Joined | None = None
        self._described = False
        self._points: list[Metric] = []
        self._next, self._next_log, self._logged_bytes = 0.0, 0.0, 0

    @property
    def over(self) -> bool:
        """Whether the stage has ended, by its own word or by dying."""
        return self.state["end"] is not None or not processes.alive(self.opening["process"])

    def advance(self) -> None:
        """Deliver what is due: now and then while the stage runs, everything and its end when it is over. Raises what MLflow raises."""
        over, now = self.over, time.monotonic()
        if over:
            while self._step():
                pass
            self._finish()
        elif now >= self._next or self.outbox.ending(self.state["offset"]):
            self._next = now + BATCH_SECONDS
            self._step()
            if now >= self._next_log:
                self._next_log = now + LOG_SECONDS
                self._upload_log()

    def trouble(self, reason: str) -> None:
        """Let the stage know that MLflow does not answer."""
        self.state["trouble"] = clean(reason)[:300]
        self._acknowledge()

    def _acknowledge(self) -> None:
        self.outbox.acknowledge(self.state)

    def _step(self) -> bool:
        """Deliver what there is; False when there was nothing."""
        self._join()
        events, offset = self.outbox.read(self.state["offset"])
        if not events:
            return False
        before, self._points = {**self.state}, []
        try:
            for event in events:
                self._take(event)
            self._flush()
        except BaseException:
            self.state = {**before, "end": self.state["end"]}  # what is said again is counted again
            raise
        self.state |= {"offset": offset, "trouble": ""}
        self._acknowledge()
        return True

    def _finish(self) -> None:
        """Say in the run how the stage ended, and give the run its status."""
        end = self.state["end"] or {"status": "KILLED", "milliseconds": int(time.time() * 1000), "tags": {}}
        self._upload_log()
        self._tell(lambda store, run: store.end_stage(run, self._claim(), end["status"], end["milliseconds"], end["tags"]))
        self.state |= {"finished": True, "trouble": ""}
        self._acknowledge()

    def _upload_log(self) -> None:
        """Bring what the stage has printed so far into the run, if that has grown."""
        size = self.outbox.log.stat().st_size if self.outbox.log.is_file() else 0
        if size == self._logged_bytes:
            return
        assert self._joined
        if self.state["end"] is None and not set(self.opening["secrets"]) <= set(secret_names()):
            return  # only the stage's own environment knows what must not be in it
        path = self.outbox.files / (f"{self.opening['stage']}.log" if self._joined.tries == 1 else f"{self.opening['stage']}-{self._joined.tries}.log")
        replace_text(path, clean(self.outbox.printed()))
        self._tell(lambda store, run: store.artifact(run, path, "logs"))
        self._logged_bytes = size

    def _take(self, event: Event) -> None:
        kind = event["event"]
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
        return Claim(
            **{name: self.opening[name] for name in ("key", "stage", "name", "process", "dvc", "workspace", "closing")}, started=self.opening.get("started")
        )

    def _join(self) -> None:
        """Find or open the run, once, and tell it where the stage came from."""
        if self._joined is None:
            self._joined = self._store().join(self._claim(), self.state["run_id"])
            self.state["run_id"] = self._joined.run_id
            self._acknowledge()
        if not self._described:
            self._describe()
            self._described = True

    def _describe(self) -> None:
        opening = self.opening
        self._tell(lambda store, run: store.describe(run, opening["params"], opening["tags"]))
        if opening["dataset"]:
            self._tell(lambda store, run: store.dataset(run, opening["dataset"]))
        environment = self.outbox.home / "environment.txt"
        if environment.is_file():
            self._tell(lambda store, run: store.artifact(run, environment))

    def _store(self) -> Store:
        return self._stores.get(self.opening["experiment"])

    def _tags(self, event: Event) -> None:
        self._tell(lambda store, run: store.describe(run, {}, event["values"]))

    def _note(self, event: Event) -> None:
        self._tell(lambda store, run: store.describe(run, {}, {"mlflow.note.content": event["text"]}))

    def _file(self, event: Event) -> None:
        self._tell(lambda store, run: store.artifact(run, self.outbox.files / event["path"], event["folder"]))

    def _fill(self, event: Event) -> None:
        """Figures, curves and files of a stage that DVC took from its cache, unless the stage itself has logged them in this run."""
        assert self._joined
        if self._store().stage_tags(self._joined.run_id).get(event["stage"]) in ("FINISHED", "CACHED"):
            return
        points = [(name, value, event["milliseconds"], 0) for name, value in event["values"].items()]
        for path, folder in event["files"]:
            self._file({"path": path, "folder": folder})
        for path, prefix in event["curves"]:
            points += _curve_points(self.outbox.files / path, prefix, event["milliseconds"])
        self._tell(lambda store, run: store.metrics(run, points))
        self._tell(lambda store, run: store.describe(run, {}, {f"stage.{event['stage']}": "CACHED"}))

    def _tell(self, call: Callable[[Store, str], Any]) -> bool:
        """Tell MLflow; False when it will never take this, which is remembered. Any other failure raises."""
        assert self._joined
        try:
            call(self._store(), self._joined.run_id)
        except Exception as error:
            if not permanent(error):
                raise
            say(f"refused: {error}")
            self.state["refusals"] = [*self.state["refusals"], clean(str(error))[:300]][-20:]
            return False
        return True


def refusals(state: Event) -> list[str]:
    """What MLflow would not take, for a person."""
    points = [f"MLflow refused {state['refused']} points"] if state["refused"] else []
    return points + [f"MLflow refused: {reason}" for reason in state["refusals"]]


def _curve_points(path: Path, prefix: str, milliseconds: int) -> list[Metric]:
    """The points of a curve's file; its column `step` places them."""
    points = []
    for row in curves.rows(path):
        step = row.get("step")
        if isinstance(step, float):
            values = ((name, value) for name, value in row.items() if name not in curves.AXES and isinstance(value, float))
            points += [(f"{prefix}{name}", value, milliseconds, int(step)) for name, value in values]
    return points


def say(line: str) -> None:
    """A line in the recorder's own log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {clean(line)[:500]}", file=sys.stderr, flush=True)
