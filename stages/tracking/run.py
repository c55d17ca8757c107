"""A stage's side of tracking: `with stage("train", params) as run:` joins the experiment's run, and never blocks or fails for its sake."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from stages.tracking import lineage, processes
from stages.tracking.outbox import Outbox, home, replace_text
from stages.tracking.output import Tee
from stages.tracking.pipeline import Contents, Snapshot, Stage, key, stages

WAIT_SECONDS = 10.0  # for the recorder, when a stage ends
Values = Mapping[str, Any]


class Interrupted(BaseException):
    """SIGTERM: the work stops where it is."""


def stage(name: str, params: Values, *, experiment: str = "underbudget", closing: bool = False) -> "Run":
    """The tracked life of the DVC stage `name`, as a context manager.

    `params` is the whole of params.yaml (`model_dump(mode="json")`). Entering joins the experiment's run; leaving ends the stage in it: FINISHED, FAILED on
    an exception, KILLED on SIGINT and SIGTERM. Every failure leaves as SystemExit with a non-zero code; a ValueError, which is the user's to mend, prints
    its message without a traceback. `closing` belongs to the last stage: its end is the run's end.
    """
    return Run(name, params, experiment, closing)


class Run:
    """What a stage tells MLflow; see `stage`."""

    def __init__(self, name: str, params: Values, experiment: str, closing: bool) -> None:
        self.name, self.params, self.experiment, self.closing = name, params, experiment, closing
        self._seconds: dict[str, float] = {}
        self._report: dict[str, Any] | None = None
        self._nonfinite: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._entered = time.monotonic()
        self._seconds["start"] = time.time() - processes.started()
        self._outbox = Outbox.create(home(), self.name)
        self._recorder = _start_recorder(self._outbox)
        self._writer = self._outbox.writer()
        self._tee = Tee(self._outbox.log)
        pipeline = stages()
        contents = Contents()
        self.key = key(self.params, contents, pipeline)
        self._snapshot = Snapshot.take(pipeline.get(self.name, Stage((), (), (), ())), contents)
        self._open()
        self._handlers = _catch_signals()
        self._seconds["tracking"] = time.monotonic() - self._entered
        return self

    def _open(self) -> None:
        sha, diff = lineage.commit(), lineage.uncommitted()
        self._writer.write(
            "open",
            key=self.key,
            stage=self.name,
            name=os.environ.get("DVC_EXP_NAME") or f"{sha[:7] or 'nogit'}-{self.key[:6]}",
            process=processes.identity(),
            dvc=processes.dvc_command(),
            workspace=str(Path.cwd()),
            closing=self.closing,
            experiment=self.experiment,
            params={name: _text(value) for name, value in flat(self.params)},
            tags=lineage.tags(sha, diff),
            dataset=lineage.dataset(self.params),
        )
        self._text_artifact("params.json", json.dumps(self.params, indent=1, ensure_ascii=False))
        if diff:
            self._text_artifact("uncommitted.diff", diff)

    def point(self, step: int, values: Mapping[str, float]) -> None:
        """One point of each named curve, "loss" as metric "<stage>.loss". A non-finite value is flagged and kept out of the chart. Never waits, never raises."""
        finite = {f"{self.name}.{name}": number for name, value in values.items() if (number := self._finite(name, value, f"step {step}")) is not None}
        if finite:
            self._writer.write("point", step=step, milliseconds=_now(), curve=True, values=finite)

    def artifact(self, path: Path | str, folder: str = "") -> None:
        """Copy a file or folder, as it is now, into `folder` of the run. Raises FileNotFoundError when it is not there."""
        path = Path(path)
        place = f"{time.monotonic_ns()}/{path.name}"
        target = self._outbox.files / place
        try:
            target.parent.mkdir(parents=True)
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target)
        except FileNotFoundError:
            raise
        except OSError as error:
            print(f"tracking: {path} is missing from the run: {error}", file=sys.stderr)
            return
        self._writer.write("file", path=place, folder=f"{folder}/{path.name}" if path.is_dir() else folder)

    def _text_artifact(self, name: str, text: str) -> None:
        replace_text(self._outbox.files / name, text)
        self._writer.write("file", path=name, folder="")

    def report(self, values: Values) -> None:
        """The stage's results: reports/<stage>.json, written whole or not at all, and metrics "<stage>.<key>". Non-finite numbers become null and are flagged."""
        self._report = dict(values)
        self._write_report()

    def _write_report(self) -> None:
        if self._report is None:
            return
        total = time.time() - processes.started()
        seconds = {**self._report.get("seconds", {}), **{name: round(value, 3) for name, value in {**self._seconds, "total": total}.items()}}
        values = self._clean({**self._report, "seconds": seconds})
        Path("reports").mkdir(exist_ok=True)
        replace_text(Path("reports", f"{self.name}.json"), json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        figures = {f"{self.name}.{name}": float(value) for name, value in flat(values) if isinstance(value, int | float)}
        self._writer.write("point", step=0, milliseconds=_now(), curve=False, values=figures)

    def _clean(self, values: Any, name: str = "") -> Any:
        if isinstance(values, Mapping):
            return {str(part): self._clean(value, f"{name}.{part}" if name else str(part)) for part, value in values.items()}
        if isinstance(values, list | tuple):
            return [self._clean(value, name) for value in values]
        return self._finite(name, values, "report") if isinstance(values, float) else values

    def _finite(self, name: str, value: float, where: str) -> float | None:
        """The value, or None when it is not finite: then the first place is flagged on the run."""
        value = float(value)
        if math.isfinite(value):
            return value
        if name not in self._nonfinite:
            self._nonfinite[name] = f"{value} at {where}"
            self._writer.write("tags", values={f"nonfinite.{self.name}.{name}": self._nonfinite[name]})
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        leaving = time.monotonic()
        _release_signals(self._handlers)
        status, code = self._verdict(error)
        self._seconds["tracking"] += time.monotonic() - leaving
        self._write_report()
        self._writer.write("end", status=status, milliseconds=_now(), tags={"threads": str(lineage.threads())})
        self._tee.close()
        self._writer.close()
        self._await_recorder()
        if code:
            raise SystemExit(code) from None

    def _verdict(self, error: BaseException | None) -> tuple[str, int]:
        """Status and exit code of the stage; says why on standard error."""
        if isinstance(error, KeyboardInterrupt | Interrupted):
            name, code = ("SIGTERM", 143) if isinstance(error, Interrupted) else ("SIGINT", 130)
            print(f"{self.name}: stopped by {name}", file=sys.stderr)
            return "KILLED", code
        if isinstance(error, SystemExit) and not error.code:
            error = None
        if error is None:
            return self._unchanged()
        if isinstance(error, ValueError):
            print(f"{self.name}: {error}", file=sys.stderr)
        elif isinstance(error, SystemExit):
            print(f"{self.name}: {error.code}", file=sys.stderr)
            return "FAILED", error.code if isinstance(error.code, int) else 1
        else:
            traceback.print_exception(error)
        return "FAILED", 1

    def _unchanged(self) -> tuple[str, int]:
        changes = self._snapshot.changes()
        if not changes:
            return "FINISHED", 0
        print(f"{self.name}: what it depends on changed while it ran, so its result is not recorded; run it again:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in changes), file=sys.stderr)
        return "FAILED", 1

    def _await_recorder(self) -> None:
        try:
            out, _ = self._recorder.communicate(timeout=WAIT_SECONDS)
            result = json.loads(out or b"{}")
        except (subprocess.TimeoutExpired, ValueError):
            print("tracking: MLflow is late; the recorder goes on in the background", file=sys.stderr)
            return
        for line in [*result.get("replayed", ()), *(f"{name}: was RUNNING without a process, now KILLED" for name in result.get("repaired", ()))]:
            print(f"tracking: {line}")
        if result.get("refused"):
            print(f"tracking: MLflow refused {result['refused']} points: {result['refusals'][-1]}", file=sys.stderr)


def _start_recorder(outbox: Outbox) -> "subprocess.Popen[bytes]":
    """The recorder, in a session of its own: neither Ctrl-C nor the end of this process reaches it."""
    package = Path(__file__).resolve().parents[2]
    with (outbox.folder.parents[1] / "recorder.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "stages.tracking.recorder", str(outbox.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=package,
            start_new_session=True,
        )


def _catch_signals() -> dict[int, Any]:
    """Turn SIGTERM into an exception; returns what to give back. Only the main thread may."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    try:
        return {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    except ValueError:
        return {}


def _release_signals(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def flat(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _now() -> int:
    return int(time.time() * 1000)
