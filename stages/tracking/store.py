"""MLflow, and the only import of it: where the runs are kept, which run a stage belongs to, and writing to it."""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from filelock import FileLock

from stages.tracking.claims import Claim, Joined, busy, ours, working

MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100  # in one request
MAX_PARAM, MAX_TAG, MAX_NAME = 6000, 8000, 250  # characters
# What no repetition will mend: MLflow's error codes.
PERMANENT = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "BAD_REQUEST", "INVALID_STATE", "MALFORMED_REQUEST"}

Metric = tuple[str, float, int, int]  # name, value, milliseconds, step


def quiet_environment() -> None:
    """Settings that MLflow reads when it is imported: no telemetry, and failures at once, since the recorder repeats by its own rule."""
    wanted = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def uri(home: Path) -> str:
    """MLFLOW_TRACKING_URI, else a sqlite file in the project's .underbudget folder."""
    path = (home / "mlflow.db").as_posix().replace("%", "%25").replace("?", "%3F")
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{path}"


def remote(uri: str) -> bool:
    """Whether a server keeps the runs, and their artifacts with them."""
    return uri.startswith(("http:", "https:", "databricks"))


def name_for(text: str) -> str:
    """`text` as a name that MLflow takes for a metric, parameter or tag."""
    return re.sub(r"[^\w\-. /:]", "_", text)[:MAX_NAME]


def fits(value: Any, limit: int, where: str) -> str:
    """`value` as text, cut visibly when it is longer than `limit` characters."""
    text = str(value)
    note = f"... cut, {len(text)} characters; whole in {where}"
    return text if len(text) <= limit else text[: limit - len(note)] + note


def lock(home: Path) -> FileLock:
    """Held while the store is created and while runs are joined: processes that create the same sqlite file at once ruin it."""
    home.mkdir(parents=True, exist_ok=True)
    return FileLock(home / "store.lock", thread_local=False)


def prepare(home: Path) -> None:
    """Create the store when it is not there yet, so that a server can be started on it."""
    quiet_environment()
    from mlflow import MlflowClient

    with lock(home):
        MlflowClient(uri(home)).search_experiments(max_results=1)


class Store:
    """An open tracking store; every method may raise what MLflow raises."""

    def __init__(self, home: Path, experiment: str) -> None:
        quiet_environment()
        from mlflow import MlflowClient

        self.home, self.lock = home, lock(home)
        with self.lock:
            self.client = MlflowClient(uri(home))
            self.experiment_id = self._experiment(experiment)

    def ping(self) -> None:
        """Read something small."""
        self.client.get_experiment(self.experiment_id)

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            folder = None if remote(uri(self.home)) else (self.home / "artifacts").as_uri()
            return str(self.client.create_experiment(name, artifact_location=folder))
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def join(self, claim: Claim, run_id: str | None = None) -> Joined:
        """The newest run with the key, or a new attempt where that one is closed or has the stage behind it; `run_id`: the run already joined."""
        with self.lock:
            run = self._joined(run_id) or self._find(claim)
            if run is None:
                return self._create(claim)
            tries = int(run.data.tags.get(f"tries.{claim.stage}", 0)) + (run.info.run_id != run_id)
            if run.data.tags.get(f"stage.{claim.stage}") != "FINISHED" or claim.closing:
                self.describe(run.info.run_id, {}, {**claim.tags, f"tries.{claim.stage}": str(tries)})
                self._rename(run, claim)
            if "closed" not in run.data.tags or claim.closing:
                self.client.update_run(run.info.run_id, status="RUNNING")
            # the only place where MLflow gives the steps without the whole history
            steps = {metric.key: metric.step for metric in run.data._metric_objs if metric.key.startswith(f"{claim.stage}.")}
            return Joined(run.info.run_id, tries, steps)

    def _rename(self, run: Any, claim: Claim) -> None:
        """A run that an interrupted experiment left is now that of the experiment which goes on with it, by which DVC knows it."""
        attempt = int(run.data.tags.get("attempt", 1))
        if not claim.closing and run.info.run_name != (name := claim.name if attempt == 1 else f"{claim.name}-{attempt}"):
            self.client.update_run(run.info.run_id, name=name)

    def _joined(self, run_id: str | None) -> Any | None:
        """The run joined by an earlier delivery; None when there was none, or somebody has removed it."""
        try:
            return self.client.get_run(run_id) if run_id else None
        except Exception as error:
            if permanent(error):
                return None
            raise

    def _create(self, claim: Claim) -> Joined:
        attempt = 1 + max((int(run.data.tags.get("attempt", 1)) for run in self._runs(claim.key)), default=0)
        name = claim.name if attempt == 1 else f"{claim.name}-{attempt}"
        tags = {**claim.tags, "attempt": str(attempt), f"tries.{claim.stage}": "1"}
        run = self.client.create_run(self.experiment_id, run_name=name, tags=tags, start_time=claim.started)
        return Joined(run.info.run_id)

    def _runs(self, key: str) -> list[Any]:
        return list(self.client.search_runs([self.experiment_id], f"tags.`key` = '{key}'", order_by=["attributes.start_time DESC"], max_results=100))

    def _find(self, claim: Claim) -> Any | None:
        """The run to go on with; None: open a new attempt. A run that a twin is at work on is not ours."""
        runs = [run for run in self._runs(claim.key) if ours(run.data.tags, claim) or not busy(run.data.tags)]
        runs.sort(key=lambda run: not ours(run.data.tags, claim))
        if not runs:
            return None
        tags = runs[0].data.tags
        over = "closed" in tags or tags.get(f"stage.{claim.stage}") == "FINISHED"
        return None if over and not claim.closing else runs[0]

    def metrics(self, run_id: str, points: list[Metric]) -> None:
        """Log points; a point that is there already is not doubled."""
        from mlflow.entities import Metric as Entity

        for start in range(0, len(points), MAX_METRICS):
            batch = [Entity(name_for(name), value, milliseconds, step) for name, value, milliseconds, step in points[start : start + MAX_METRICS]]
            self.client.log_batch(run_id, metrics=batch, synchronous=True)

    def describe(self, run_id: str, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Log parameters and tags of any number and length; what is too long is cut and says so."""
        from mlflow.entities import Param, RunTag

        entries = [Param(name_for(name), fits(value, MAX_PARAM, "params.json")) for name, value in params.items()]
        marks = [RunTag(name_for(name), fits(value, MAX_TAG, "the artifacts")) for name, value in tags.items()]
        while entries or marks:
            self.client.log_batch(run_id, params=entries[:MAX_PARAMS], tags=marks[:MAX_TAGS], synchronous=True)
            entries, marks = entries[MAX_PARAMS:], marks[MAX_TAGS:]

    def dataset(self, run_id: str, entry: Mapping[str, str]) -> None:
        """Name the data that the run read."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        found = Dataset(name=entry["name"], digest=entry["digest"], source_type="local", source=entry["source"], profile=entry["profile"])
        self.client.log_inputs(run_id, datasets=[DatasetInput(found, [InputTag("mlflow.data.context", "training")])])

    def artifact(self, run_id: str, path: Path, folder: str = "") -> None:
        """Copy a file or folder into the run; in a local store each file is there whole or not at all."""
        root = self.client.get_run(run_id).info.artifact_uri
        if urlparse(root).scheme != "file":
            if path.is_dir():
                self.client.log_artifacts(run_id, str(path), folder or None)
            else:
                self.client.log_artifact(run_id, str(path), folder or None)
            return
        target = Path(unquote(urlparse(root).path)) / folder
        for file in _files(path):
            _copy(file, target / (file.relative_to(path) if path.is_dir() else file.name))

    def stage_tags(self, run_id: str) -> dict[str, str]:
        """Status by stage."""
        return {name[6:]: value for name, value in self.client.get_run(run_id).data.tags.items() if name.startswith("stage.")}

    def end_stage(self, run_id: str, claim: Claim, status: str, milliseconds: int, tags: Mapping[str, str]) -> None:
        """Say how a stage ended, and give the run its status: SCHEDULED while more stages are to come, RUNNING while another is at it."""
        with self.lock:
            closing = claim.closing and status == "FINISHED"
            self.describe(run_id, {}, {**tags, f"stage.{claim.stage}": status, **({"closed": "true"} if closing else {})})
            found = self.client.get_run(run_id).data.tags
            if status == "FINISHED" and f"failure.{claim.stage}" in found:
                self.client.delete_tag(run_id, f"failure.{claim.stage}")
            if working(found) or ("closed" in found and not claim.closing):
                return
            if status == "FINISHED" and not closing:
                self.client.update_run(run_id, status="SCHEDULED")
            else:
                self.client.set_terminated(run_id, status=status, end_time=milliseconds)

    def repair(self) -> list[str]:
        """End the runs that are RUNNING though the process that worked on them is gone; returns their names."""
        repaired = []
        for run in self.client.search_runs([self.experiment_id], "attributes.status = 'RUNNING'", max_results=1000):
            broken = {name: "KILLED" for name, value in run.data.tags.items() if name.startswith("stage.") and value == "RUNNING"}
            if broken and not working(run.data.tags):
                self.describe(run.info.run_id, {}, broken)
                self.client.set_terminated(run.info.run_id, status="KILLED")
                repaired.append(str(run.info.run_name))
        return repaired


def permanent(error: BaseException) -> bool:
    """Whether MLflow will never take this, however often it is repeated."""
    return getattr(error, "error_code", None) in PERMANENT


def _files(path: Path) -> Iterable[Path]:
    return sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
