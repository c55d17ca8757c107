"""A stage's side of tracking: `with stage("train", params) as run:` joins the experiment's run, and never blocks or fails for its sake."""

import contextlib
import json
import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stages.tracking import ending, lineage, processes, results
from stages.tracking import outbox as outboxes
from stages.tracking.curves import AXES, read
from stages.tracking.imports import ImportClock
from stages.tracking.outbox import replace_text
from stages.tracking.output import Tee
from stages.tracking.pipeline import Contents, Snapshot, Stage, follows, key, stages
from stages.tracking.recording import Recording
from stages.tracking.redact import clean, clean_file, clean_values, secret_names

WATCH_SECONDS = 10.0  # between two looks at the recorder and at what the stage depends on


def stage(name: str, params: results.Values, *, experiment: str = "underbudget", closing: bool = False) -> "Run":
    """The tracked life of the DVC stage `name`, as a context manager.

    `params` is the whole of params.yaml (`model_dump(mode="json")`). Entering joins the experiment's run; leaving ends the stage in it: FINISHED, FAILED on
    an exception, KILLED on SIGINT and SIGTERM. Every failure leaves as SystemExit with a non-zero code; a ValueError, which is the user's to mend, prints
    its message without a traceback. `closing` belongs to the last stage: its end is the run's end.
    """
    return Run(name, params, experiment, closing)


class Run:
    """What a stage tells MLflow; see `stage`."""

    def __init__(self, name: str, params: results.Values, experiment: str, closing: bool) -> None:
        self.name, self.params, self.experiment, self.closing = name, params, experiment, closing
        self.key, self.title = "", ""
        self._seconds: dict[str, float] = {"start": time.time() - processes.started()}
        self._report: dict[str, Any] | None = None
        self._beside: dict[str, Any] = {}
        self._curves: set[str] = set()
        self._flagged: set[str] = set()
        self._over = threading.Event()
        self._imports = ImportClock()

    def __enter__(self) -> Self:
        with self.timed("tracking"):
            self._outbox = outboxes.make(self.name)
            self._dvc = processes.dvc_command()
            self._writer, self._recording = self._outbox.writer(), Recording(self._outbox, self._dvc or processes.identity())
            contents, pipeline = Contents(memory=self._outbox.home / "hashes.json"), stages()
            self.key = key(self.params, contents, pipeline)
            self._snapshot = Snapshot.take(pipeline.get(self.name, Stage()), contents)
            contents.remember()
            self._open(later=follows(pipeline, self.name))
            threading.Thread(target=self._watch, name="tracking", daemon=True).start()
            self._tee = Tee(self._outbox.log)
            self._handlers = ending.catch()
            self._imports.start()
        return self

    def _open(self, *, later: bool) -> None:
        """The first event: which run this is, and where it comes from. What dvc.lock says holds for a stage that follows others."""
        origin = lineage.origin(self.params, later=later)
        self.title = lineage.title(origin.commit, self.key)
        identity = {"process": processes.identity(), "dvc": self._dvc, "workspace": str(Path.cwd()), "started": _now()}
        names = {"key": self.key, "stage": self.name, "name": self.title, "experiment": self.experiment, "closing": self.closing}
        params = clean_values({name: results.text(value) for name, value in results.flat(self.params)})
        self._writer.write("open", **identity, **names, params=params, secrets=secret_names(), **clean_values({"tags": origin.tags, "dataset": origin.dataset}))
        self._text("params.json", json.dumps(clean_values(self.params), indent=2, ensure_ascii=False, default=str))
        if origin.diff:
            self._text("uncommitted.diff", origin.diff)
        if later and Path("dvc.lock").is_file():
            self.artifact("dvc.lock")

    @property
    def command_began(self) -> float:
        """When the DVC command began that runs this stage, or else the stage itself: in seconds of time.time()."""
        return processes.started(self._dvc)

    def point(self, step: int, values: Mapping[str, float]) -> None:
        """One point of each named curve, "<stage>.loss" for "loss"; never waits or raises. A non-finite value is flagged and kept out of the chart."""
        finite = {}
        for name, value in values.items():
            if math.isfinite(value):
                finite[f"{self.name}.{name}"] = float(value)
            else:
                self._flag(name, value, f"step {step}")
        if finite:
            self._curves.update(finite)
            self._writer.write("point", step=step, milliseconds=_now(), curve=True, values=finite)

    def artifact(self, path: Path | str, folder: str = "") -> None:
        """Copy a file or a folder, as it is now, into `folder` of the run. Raises FileNotFoundError when it is not there."""
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there to become an artifact of {self.name}")
        copied = self._copy(path)
        if copied:
            self._writer.write("file", path=copied, folder=f"{folder}/{path.name}".strip("/") if path.is_dir() else folder)

    def _copy(self, path: Path) -> str:
        """Copy into the outbox, since the workspace may be gone before it is sent; the place there, or nothing where the disk did not take it."""
        place = Path(f"{time.monotonic_ns()}", path.name)
        target = self._outbox.files / place
        try:
            target.parent.mkdir(parents=True)
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(target.parent, ignore_errors=True)
            print(f"tracking: {path} will be missing from the run: {error}", file=sys.stderr)
            return ""
        return place.as_posix()

    def _text(self, name: str, text: str) -> None:
        try:
            replace_text(self._outbox.files / name, clean(text))
            self._writer.write("file", path=name, folder="")
        except OSError as error:
            print(f"tracking: {name} will be missing from the run: {error}", file=sys.stderr)

    def note(self, text: str) -> None:
        """Markdown that MLflow shows at the head of the run's page."""
        self._writer.write("note", text=clean(text))

    def report(self, values: results.Values, *, beside: results.Values | None = None) -> None:
        """The stage's results: reports/<stage>.json and metrics "<stage>.<key>". A non-finite number becomes null there, is no metric, and is flagged.

        One that is named like a curve becomes the metric "<stage>.final_<key>". Seconds spent are added under "seconds". What stands `beside` the results is
        in the file alone: it has metrics elsewhere.
        """
        self._report, self._beside = dict(values), dict(beside or {})
        for name, value in self._save_report()[1].items():
            self._flag(name, value, "the report")

    def _save_report(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Write the file; returns its results, and those that are not finite."""
        assert self._report is not None
        seconds = {name: round(value, 3) for name, value in self._seconds.items()}
        values, bad = results.finite({**self._report, "seconds": {**self._report.get("seconds", {}), **seconds}})
        results.write(self.name, {**results.finite(self._beside)[0], **values})
        return values, bad

    def _finish_report(self, verdict: ending.Verdict) -> ending.Verdict:
        """The report once more, with all seconds, and as metrics; a disk that does not take it fails the stage."""
        self._seconds |= {"total": time.time() - processes.started(), "imports": self._imports.seconds}
        if self._report is None:
            return verdict
        try:
            values, _ = self._save_report()
        except OSError as error:
            ending.tell(f"{self.name}: {results.path(self.name)} could not be written: {error}")
            return ending.Verdict("FAILED", verdict.code or 1, str(error))
        self._writer.write("point", step=0, milliseconds=_now(), curve=False, values=results.metrics(self.name, values, self._curves))
        return verdict

    def fill(self, stage_name: str, values: results.Values, curves: Sequence[tuple[Path, str]], files: Sequence[Path] = ()) -> None:
        """Give the run what another stage found, if that stage itself did not run in it: DVC took it from its cache.

        `curves` are CSV files with the prefix of their columns' names; `files` become artifacts in a folder named like theirs.
        """
        names = {f"{prefix}{column}" for path, prefix in curves for column in read(path) if column not in AXES}
        self._writer.write(
            "fill",
            stage=stage_name,
            milliseconds=_now(),
            values=results.metrics(stage_name, results.finite(values)[0], names),
            curves=[(copied, prefix) for path, prefix in curves if (copied := self._copy(path))],
            files=[(copied, path.parent.as_posix()) for path in files if (copied := self._copy(path))],
        )

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the seconds of the block under "seconds.<name>" of the report."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began

    def _flag(self, name: str, value: float, place: str) -> None:
        """Say once, here and on the run, that a number was not finite."""
        if name not in self._flagged:
            self._flagged.add(name)
            print(f"{self.name}: {name} is {value} at {place}; it is kept out of the charts", file=sys.stderr)
            self._writer.write("tags", values={f"nonfinite.{self.name}.{name}": f"{value} at {place}"})

    def _watch(self) -> None:
        """Keep a recorder running, and warn as soon as an edit would make the result void."""
        warned: list[str] = []
        pause = WATCH_SECONDS
        while not self._over.wait(pause):
            self._recording.check()
            began = time.monotonic()
            changes = self._snapshot.changes()
            pause = max(WATCH_SECONDS, 200 * (time.monotonic() - began))
            if changes and changes != warned:
                ending.tell(f"{self.name}: changed while it runs; undo this before it ends, or its result is refused:", changes)
            warned = changes

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self.timed("tracking"):
            ending.release(self._handlers)
            handlers = ending.hurry()
            self._imports.stop()
            self._over.set()
            verdict = self._verdict(error)
        verdict = self._finish_report(verdict)
        for line in self._leave(verdict):
            print(f"tracking: {line}", file=sys.stderr)
        ending.release(handlers)
        if verdict.code:
            raise SystemExit(verdict.code) from None

    def _verdict(self, error: BaseException | None) -> ending.Verdict:
        """How the stage ended."""
        verdict = ending.judge(self.name, error, self._tee.note)
        changes = self._snapshot.changes() if verdict is ending.FINISHED else []
        return ending.refuse(self.name, changes) if changes else verdict

    def _leave(self, verdict: ending.Verdict) -> list[str]:
        """Say the last word, and wait for the recorder unless other stages follow; returns what a person should know."""
        self._tee.close()
        with contextlib.suppress(OSError):
            clean_file(self._outbox.log)
        follow = bool(self._dvc) and verdict is ending.FINISHED and not self.closing
        tags = {"threads": str(lineage.threads()), **({f"failure.{self.name}": clean(verdict.reason)} if verdict.reason else {})}
        self._writer.write("end", status=verdict.status, milliseconds=_now(), tags=tags, waits=not follow)
        self._writer.close()
        with self.timed("waiting"):  # MLflow cannot know it, so it stands in the file alone
            news = self._recording.pass_on() if follow else self._recording.wait()
        if self._report is not None and not verdict.code:
            self._save_report()
        return [*news, *([f"the disk did not take {self._writer.lost} entries, so MLflow will miss them"] if self._writer.lost else [])]


def _now() -> int:
    return int(time.time() * 1000)
