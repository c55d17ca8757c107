"""Which run a stage belongs to, what MLflow takes, and whole artifacts: against a real sqlite store."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.tracking import processes, store
from stages.tracking.store import Store, fits, name_for
from tests.tracking.made import claim

DEAD = f"{processes.identity().rpartition(':')[0].rpartition(':')[0]}:999999999:1"


@pytest.fixture
def opened(home: Path) -> Store:
    return Store(home, "underbudget")


def end(opened: Store, run_id: str, stage: str, status: str = "FINISHED", **changes: Any) -> None:
    opened.end_stage(run_id, claim(stage, **changes), status, 1000, {})


def status_of(opened: Store, run_id: str) -> str:
    return str(opened.client.get_run(run_id).info.status)


def test_stages_of_an_experiment_share_a_run_until_it_is_closed(opened: Store) -> None:
    first = opened.join(claim("train"))
    assert status_of(opened, first.run_id) == "RUNNING"
    end(opened, first.run_id, "train")
    assert status_of(opened, first.run_id) == "SCHEDULED"
    for stage in ("evaluate", "report"):
        assert opened.join(claim(stage)).run_id == first.run_id
        end(opened, first.run_id, stage)
    assert status_of(opened, first.run_id) == "FINISHED"
    second = opened.join(claim("evaluate"))
    assert second.run_id != first.run_id
    assert opened.client.get_run(second.run_id).info.run_name == "abc-kkk-2"


def test_another_key_is_another_run(opened: Store) -> None:
    assert opened.join(claim(key="a")).run_id != opened.join(claim(key="b")).run_id


def test_a_stage_that_finished_opens_an_attempt_and_one_that_failed_goes_on(opened: Store) -> None:
    first = opened.join(claim("train"))
    opened.metrics(first.run_id, [("train.loss", 2.0, 1, 7), ("evaluate.loss", 2.0, 1, 3)])
    end(opened, first.run_id, "train", "FAILED")
    assert status_of(opened, first.run_id) == "FAILED"
    again = opened.join(claim("train"))
    assert (again.run_id, again.tries, again.steps) == (first.run_id, 2, {"train.loss": 7})
    end(opened, again.run_id, "train")
    assert opened.join(claim("train")).run_id != first.run_id


def test_an_interrupted_run_takes_the_name_of_the_experiment_that_goes_on_with_it(opened: Store) -> None:
    first = opened.join(claim("train", name="rimed-knap"))
    end(opened, first.run_id, "train", "KILLED")
    assert opened.join(claim("train", name="spumy-ewes")).run_id == first.run_id
    assert opened.client.get_run(first.run_id).info.run_name == "spumy-ewes"


def test_report_never_opens_an_attempt(opened: Store) -> None:
    first = opened.join(claim("report"))
    end(opened, first.run_id, "report")
    assert opened.join(claim("report")).run_id == first.run_id


def test_twins_have_a_run_each_and_find_it_again(opened: Store) -> None:
    with Living() as one, Living() as two:
        theirs = {"dvc": one.name, "process": one.name, "workspace": "/one"}
        ours = {"dvc": two.name, "process": two.name, "workspace": "/two"}
        first = opened.join(claim("train", **theirs))
        second = opened.join(claim("train", **ours))
        assert first.run_id != second.run_id
        for run, twin in ((first, theirs), (second, ours)):
            end(opened, run.run_id, "train", **twin)
            assert opened.join(claim("evaluate", **twin)).run_id == run.run_id


class Living:
    """A process that does nothing."""

    def __enter__(self) -> "Living":
        self._process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.name = processes.identity(self._process.pid)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()


def test_a_run_without_its_process_is_repaired_and_one_with_it_is_left(opened: Store) -> None:
    stale = opened.join(claim("train", key="a", process=DEAD))
    with Living() as other:
        living = opened.join(claim("train", key="b", process=other.name))
        elsewhere = opened.join(claim("train", key="c", process="elsewhere:1:1"))
        assert opened.repair() == ["abc-kkk"]
        assert [status_of(opened, run.run_id) for run in (stale, living, elsewhere)] == ["KILLED", "RUNNING", "RUNNING"]
    assert opened.stage_tags(stale.run_id) == {"train": "KILLED"}
    assert opened.repair() == ["abc-kkk"]


def test_a_late_delivery_does_not_change_what_is_closed_or_running(opened: Store) -> None:
    run = opened.join(claim("train", process=DEAD)).run_id
    opened.join(claim("evaluate"))
    end(opened, run, "train", process=DEAD)
    assert status_of(opened, run) == "RUNNING"
    end(opened, run, "evaluate")
    end(opened, run, "report")
    assert opened.join(claim("train", process=DEAD), run).run_id == run
    end(opened, run, "train", "FAILED", process=DEAD)
    assert status_of(opened, run) == "FINISHED"


def test_a_run_that_somebody_removed_is_replaced(opened: Store) -> None:
    assert opened.join(claim(), "0" * 32).tries == 1


def test_the_reason_of_a_failure_goes_when_the_stage_succeeds(opened: Store) -> None:
    run = opened.join(claim("train")).run_id
    opened.end_stage(run, claim("train"), "FAILED", 1, {"failure.train": "why"})
    assert opened.client.get_run(run).data.tags["failure.train"] == "why"
    opened.join(claim("train"))
    end(opened, run, "train")
    assert "failure.train" not in opened.client.get_run(run).data.tags


@pytest.mark.parametrize("length", [600, 6000, 6001, 20000])
def test_long_parameters_are_kept_or_cut_visibly(opened: Store, length: int) -> None:
    run = opened.join(claim()).run_id
    opened.describe(run, {"prompt": "x" * length}, {"note": "y" * length})
    data = opened.client.get_run(run).data
    note = f"... cut, {length} characters; whole in params.json"
    assert data.params["prompt"] == ("x" * length if length <= 6000 else "x" * (6000 - len(note)) + note)
    assert len(data.tags["note"]) == min(length, 8000)


def test_any_number_of_parameters_tags_and_points(opened: Store) -> None:
    run = opened.join(claim()).run_id
    opened.describe(run, {f"p{i}": str(i) for i in range(250)}, {f"t{i}": str(i) for i in range(130)})
    opened.describe(run, {f"p{i}": str(i) for i in range(250)}, {})  # said again
    points = [("train.loss", 1 / (i + 1), 1000 + i, i) for i in range(2500)]
    opened.metrics(run, points)
    opened.metrics(run, points[1000:])
    data = opened.client.get_run(run).data
    assert sum(name.startswith("p") for name in data.params) == 250
    assert sum(name.startswith("t") and name[1:].isdigit() for name in data.tags) == 130
    assert [point.step for point in opened.client.get_metric_history(run, "train.loss")] == list(range(2500))


@pytest.mark.parametrize(("given", "taken"), [("a@b(c),+d", "a_b_c___d"), ("a.b/c-d e:f", "a.b/c-d e:f"), ("ä", "ä"), ("x" * 300, "x" * 250)])
def test_names_that_mlflow_refuses(opened: Store, given: str, taken: str) -> None:
    assert name_for(given) == taken
    run = opened.join(claim()).run_id
    opened.metrics(run, [(given, 1.0, 1, 0)])
    opened.describe(run, {given: "1"}, {given: "1"})
    assert taken in opened.client.get_run(run).data.metrics


def test_short_text_stays() -> None:
    assert fits(None, 10, "x") == "None"


def test_artifacts_are_whole(opened: Store, tmp_path: Path) -> None:
    run = opened.join(claim()).run_id
    folder = tmp_path / "plots ä"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.csv").write_text("1", "utf-8")
    (folder / "deep" / "b.csv").write_text("2", "utf-8")
    opened.artifact(run, folder, "plots")
    opened.artifact(run, folder / "a.csv")
    found = {entry.path for entry in opened.client.list_artifacts(run)} | {entry.path for entry in opened.client.list_artifacts(run, "plots/deep")}
    assert found == {"plots", "a.csv", "plots/deep/b.csv"}


def test_an_artifact_that_does_not_fit_on_the_disk_is_absent(opened: Store, tmp_path: Path) -> None:
    run, large = opened.join(claim()).run_id, tmp_path / "large"
    large.write_bytes(b"x" * 100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with pytest.raises(OSError, match="large"):
            opened.artifact(run, large, "sub")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [path for path in (opened.home / "artifacts").rglob("*") if path.is_file()] == []


def test_a_deleted_experiment_comes_back(opened: Store) -> None:
    opened.client.delete_experiment(opened.experiment_id)
    again = Store(opened.home, "underbudget")
    assert again.experiment_id == opened.experiment_id
    again.join(claim())


def test_the_dataset_is_named_once(opened: Store) -> None:
    run = opened.join(claim()).run_id
    for _ in range(2):
        opened.dataset(run, {"name": "sotu", "digest": "d" * 36, "source": "sotu", "profile": "{}"})
    (found,) = opened.client.get_run(run).inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest, found.tags[0].value) == ("sotu", "d" * 36, "training")


@pytest.mark.parametrize("name", ["with space", "ümläut", "[brackets]", "per%20cent", "hash#mark", "question?mark"])
def test_the_store_may_lie_anywhere(home: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / ".underbudget"
    folder.parent.mkdir()
    home.rename(folder)
    opened = Store(folder, "underbudget")
    run = opened.join(claim()).run_id
    (tmp_path / "a.txt").write_text("1", "utf-8")
    opened.artifact(run, tmp_path / "a.txt")
    assert [entry.path for entry in opened.client.list_artifacts(run)] == ["a.txt"]
    assert sorted(path.name for path in folder.parent.iterdir()) == [".underbudget"]
    assert (folder / "artifacts" / run / "artifacts" / "a.txt").is_file()


def _join(home: Path, ready: Any, number: int) -> None:
    ready.wait()
    opened = Store(home, "underbudget")
    run = opened.join(claim(key=f"k{number}")).run_id
    opened.metrics(run, [("train.loss", float(number), 1, 0)])


@pytest.mark.slow
@pytest.mark.parametrize("time", range(5))
def test_six_processes_at_once_on_no_store_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time: int) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    context = multiprocessing.get_context("fork")
    ready, home = context.Barrier(6), tmp_path / ".underbudget"
    store.quiet_environment()
    import mlflow  # noqa: F401  so that all six start within a moment

    workers = [context.Process(target=_join, args=(home, ready, number)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=300)
    assert [worker.exitcode for worker in workers] == [0] * 6
    found = Store(home, "underbudget")
    runs = found.client.search_runs([found.experiment_id])
    assert sorted(run.data.metrics["train.loss"] for run in runs) == [0, 1, 2, 3, 4, 5]
    assert os.listdir(tmp_path) == [".underbudget"]  # noqa: PTH208
