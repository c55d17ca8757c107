"""The whole pipeline, for real: `dvc repro` in a repository of its own, then what a person finds there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.conftest import Project

STAGES = ("tokenize", "train", "profile", "evaluate", "quantize", "report")


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    """One run of the whole pipeline, shared by the tests of this module, which only read it."""
    made = make_project()
    made.dvc("repro")
    return made


def runs(project: Project) -> list[Any]:
    """The MLflow runs in the project's own store, newest first."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{project.folder}/.underbudget/mlflow.db")
    experiment = client.get_experiment_by_name("underbudget")
    return list(client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"]))


def reports(project: Project) -> dict[str, dict[str, Any]]:
    return {stage: json.loads((project.folder / "reports" / f"{stage}.json").read_text("utf-8")) for stage in STAGES}


def test_every_stage_is_in_the_lock(project: Project) -> None:
    lock = YAML(typ="safe").load((project.folder / "dvc.lock").read_text("utf-8"))
    assert set(lock["stages"]) == set(STAGES)


def test_one_finished_run_holds_every_stage(project: Project) -> None:
    (run,) = runs(project)
    assert run.info.status == "FINISHED"
    assert {name.split(".")[0] for name in run.data.metrics} >= set(STAGES) - {"report"}


def test_every_report_is_valid_json_of_finite_numbers(project: Project) -> None:
    def constant(name: str) -> None:
        raise AssertionError(name)

    for stage in STAGES:
        assert json.loads((project.folder / "reports" / f"{stage}.json").read_text("utf-8"), parse_constant=constant)


def test_the_key_joins_dvc_and_mlflow(project: Project) -> None:
    (run,) = runs(project)
    assert run.data.tags["key"] == reports(project)["report"]["key"]


def test_a_second_repro_runs_nothing(project: Project) -> None:
    output = project.dvc("repro").stdout
    assert "Running stage" not in output
    assert len(runs(project)) == 1


def test_the_model_loads_with_plain_transformers(project: Project) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(project.folder / "models" / "model")
    tokenizer = AutoTokenizer.from_pretrained(project.folder / "models" / "model")
    text = "Fellow citizens,\r\n  of the Senate"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert model.config.vocab_size == len(tokenizer)


def test_metrics_and_plots_are_shown_as_they_stand(project: Project) -> None:
    assert "evaluate" in project.dvc("metrics", "show").stdout
    page = Path(project.dvc("plots", "show").stdout.strip().splitlines()[-1].removeprefix("file://"))
    assert page.read_text("utf-8").count("vega") > 0


@pytest.mark.slow
def test_two_clones_make_the_same_model(project: Project, make_project: Callable[..., Project]) -> None:
    other = make_project()
    other.dvc("repro", "train")
    files = sorted(path.name for path in (project.folder / "models" / "model").iterdir())
    assert len(files) >= 3
    for name in files:
        assert (project.folder / "models" / "model" / name).read_bytes() == (other.folder / "models" / "model" / name).read_bytes(), name


def jsonl(project: Project) -> dict[str, str]:
    """The user's own text: a folder of jsonl with a field of another name."""
    folder = project.folder / "inputs" / "text" / "mine"
    folder.mkdir()
    for path in sorted((project.folder / "inputs" / "text" / "speeches").glob("*.txt")):
        lines = [json.dumps({"body": paragraph}) for paragraph in path.read_text("utf-8").split("\n\n") if paragraph.strip()]
        (folder / f"{path.stem}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    project.commit("own text")
    return {"data.source": "inputs/text/mine", "data.text_field": "body"}


def masked(project: Project) -> dict[str, str]:
    return {"model.objective": "masked", "model.architecture": "bert"}


def llama(project: Project) -> dict[str, str]:
    return {"model.architecture": "llama"}


def pretrained(project: Project) -> dict[str, str]:
    """Weights of a trained model as the start of the next."""
    import shutil

    project.dvc("repro", "train")
    shutil.copytree(project.folder / "models" / "model", project.folder / "inputs" / "weights" / "mine")
    project.commit("own weights")
    return {"model.init": "inputs/weights/mine"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [jsonl, masked, llama, pretrained])
def test_one_setting_away(kind: Callable[[Project], dict[str, str]], make_project: Callable[..., Project]) -> None:
    project = make_project()
    settings = kind(project)
    project.dvc("exp", "run", *(part for key, value in settings.items() for part in ("-S", f"{key}={value}")))
    newest = runs(project)[0]
    assert newest.info.status == "FINISHED"
    assert {name.split(".")[0] for name in newest.data.metrics} >= set(STAGES) - {"report"}
    for key, value in settings.items():
        assert newest.data.params[key] == value
