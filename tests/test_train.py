"""The stage `train`: what it leaves behind, what it says, how it ends."""

import contextlib
import json
import math
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML
from safetensors.torch import load_file

from stages import train
from stages.data.shards import read_meta
from stages.data.tokenizer import train as train_tokenizer
from stages.memory.measure import MemoryWatch
from stages.models.storage import load
from stages.tracking.curves import rows
from stages.training import setup
from tests.data.made import token_folder
from tests.training.made import make_params

STEPS = 16  # 1024 tokens by 4 sequences of 16
TOKENS = {"train": 3 + np.arange(900) * 2 % 5, "validation": 3 + np.arange(87) * 2 % 5, "test": np.arange(3, 60)}


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A folder in which `train` can run; a function that sets its params."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    token_folder(Path("data/tokens"), TOKENS)
    Path("data/tokenizer").mkdir()
    train_tokenizer(iter([["to be or not to be"]]), 300).save("data/tokenizer/tokenizer.json")

    def configure(changes=None):
        params = make_params(changes)
        with Path("params.yaml").open("w", encoding="utf-8") as file:
            YAML().dump(params.model_dump(mode="json"), file)
        return params

    return configure


class Points:
    """Takes the points of a run and keeps them."""

    def __init__(self) -> None:
        self.points = []

    def point(self, step, values) -> None:
        self.points.append((step, dict(values)))


def run_training(params, kind=train.Training):
    """The work of the stage without its tracking; returns the training and the points."""
    points = Points()
    ready = setup.prepare(params, read_meta())
    with MemoryWatch(ready.device) as watch, kind(points, ready, watch) as training:
        training.done = training.run()
    return training, points.points


def column(path, name):
    return [row[name] for row in rows(path)]


def tracked(status, seconds=120):
    """MLflow's latest metrics and tags of the only run, once it has `status`: the recorder may still be at work when a stage has ended."""
    give_up = time.monotonic() + seconds
    found = []
    while found != [(status,)]:
        assert time.monotonic() < give_up, f"the run is {found}, not {status}"
        time.sleep(0.5)
        for store in Path().rglob("*.db"):
            with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(store) as connection:
                found = connection.execute("select status from runs").fetchall()
                latest = dict(connection.execute("select key, value from latest_metrics").fetchall())
                tags = dict(connection.execute("select key, value from tags").fetchall())
    return latest, tags


@pytest.mark.slow  # MLflow makes its store
def test_it_leaves_weights_curves_figures_and_a_summary(workspace, capfd):
    workspace({"train": {"learning_rate": 0.01}})
    train.main()
    report = json.loads(Path("reports/train.json").read_text("utf-8"))
    assert (report["steps"], report["tokens"], report["skipped_steps"], report["precision"], report["fused_optimizer"]) == (STEPS, 1024, 0, "fp32", True)
    assert report["best_validation_loss"] < report["first_loss"]
    assert report["device_peak_bytes"] is None or report["device_peak_bytes"] > 0
    assert set(report["seconds"]) >= {"training", "validation", "saving", "epoch", "step_median", "step_p90", "start", "tracking", "total"}

    assert column("plots/train.csv", "step") == list(range(1, STEPS + 1))
    assert column("plots/train.csv", "tokens") == [64 * step for step in range(1, STEPS + 1)]
    assert all(math.isfinite(value) for name in ("loss", "learning_rate", "grad_norm", "tokens_per_second") for value in column("plots/train.csv", name))
    assert column("plots/validation.csv", "step") == [8, 16]
    assert report["last_loss"] == column("plots/train.csv", "loss")[-1]
    assert list(Path("tensorboard/train").glob("events.out.tfevents.*"))

    for folder, loss in (("models/model", report["best_validation_loss"]), ("models/last", report["validation_loss"])):
        ready = setup.prepare(make_params(), read_meta())
        ready.model.load_state_dict(load(Path(folder)).state_dict())
        assert ready.validate() == pytest.approx(loss, abs=1e-5)
        assert Path(folder, "tokenizer.json").is_file()

    latest, _ = tracked("SCHEDULED")  # until the stage `report` closes it
    assert latest["train.loss"] == pytest.approx(report["last_loss"])
    assert latest["train.validation_loss"] == pytest.approx(report["validation_loss"])
    printed = capfd.readouterr().out
    for wanted in ("validation loss", "tokens/s", "peak memory", "fp32", "models/model", "in the median"):
        assert wanted in printed


class Poisoned(train.Training):
    """NaN gets into one weight after step 3."""

    def on_step(self, step) -> None:
        super().on_step(step)
        if step.index == 3:
            with torch.no_grad():
                next(self._setup.model.parameters()).view(-1)[:7] = math.nan


def assert_only_good_weights():
    assert column("plots/train.csv", "step") == [1, 2, 3]
    assert column("plots/validation.csv", "step") == [2]
    weights = load_file("models/model/model.safetensors")
    assert len(weights) > 10
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    assert not Path("models/last").exists()
    assert not Path("reports/train.json").exists()


def test_a_loss_that_is_not_finite_ends_the_training_and_keeps_the_good_weights(workspace, capfd):
    """CASES: NaN in one weight at step 3; loss becomes NaN and training goes on."""
    params = workspace({"train": {"validation_interval": 2}})
    with pytest.raises(ValueError, match=r"the loss of step 4 is nan; training stops before its update: lower train.learning_rate"):
        run_training(params, Poisoned)
    assert "after step 2, stay in models/model" in capfd.readouterr().out
    assert_only_good_weights()


@pytest.mark.slow  # MLflow makes its store
def test_a_loss_that_is_not_finite_fails_the_stage_and_no_chart_hides_it(workspace, monkeypatch, capfd):
    """CASES: a filter shows a diverged loss as a healthy number; exit code non-zero, run FAILED."""
    workspace({"train": {"validation_interval": 2}})
    monkeypatch.setattr(train, "Training", Poisoned)
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert ended.value.code == 1
    errors = capfd.readouterr().err
    assert "the loss of step 4 is nan" in errors
    assert "Traceback" not in errors
    assert_only_good_weights()
    latest, tags = tracked("FAILED")
    assert tags["nonfinite.train.loss"] == "nan at step 4"
    assert latest["train.loss"] == pytest.approx(column("plots/train.csv", "loss")[-1])


def test_weights_that_only_validation_finds_bad_are_not_kept(workspace):
    """The NaN comes in right before a validation."""

    class JustBefore(train.Training):
        def on_step(self, step) -> None:
            if step.index == 4:
                with torch.no_grad():
                    next(self._setup.model.parameters()).view(-1)[:] = math.nan
            super().on_step(step)

    with pytest.raises(ValueError, match="the validation loss after step 4 is nan"):
        run_training(workspace({"train": {"validation_interval": 2}}), JustBefore)
    assert column("plots/validation.csv", "loss") == [pytest.approx(4.5, abs=0.5), None]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in load_file("models/model/model.safetensors").values())


def test_endless_fp16_overflow_ends_the_stage_and_is_counted(workspace):
    """CASES: the loss scale falls towards zero, every step is skipped."""
    scale = {"initial": 2.0**126, "backoff_factor": 0.99, "max_skipped_steps": 3}
    points = Points()
    ready = setup.prepare(workspace({"train": {"precision": "fp16", "loss_scale": scale}}), read_meta())
    with MemoryWatch("cpu") as watch, train.Training(points, ready, watch) as training, pytest.raises(ValueError, match="overflowed in 3 steps in a row"):
        training.run()
    step, values = points.points[-1]
    assert (step, values["skipped_steps"]) == (3, 3)
    assert all(not math.isfinite(values["grad_norm"]) for _, values in points.points)


def test_the_best_weights_are_kept_when_the_loss_rises_again(workspace):
    """Validation losses of a training whose rate is far too high towards its end."""
    training, _ = run_training(workspace({"train": {"learning_rate": 0.5, "schedule": "constant", "warmup": 0.9, "validation_interval": 1}}))
    losses = column("plots/validation.csv", "loss")
    assert len(losses) == STEPS
    best = losses.index(min(losses)) + 1
    assert best < STEPS, "the loss must rise for this to say anything"
    assert (training.summary.best_step, training.summary.best_validation_loss) == (best, min(losses))
    training._setup.model.load_state_dict(load(train.BEST).state_dict())
    assert training._setup.validate() == pytest.approx(min(losses), abs=1e-5)


def test_intervals(workspace):
    _, points = run_training(workspace({"train": {"log_interval": 3, "validation_interval": 5}}))
    assert column("plots/train.csv", "step") == [1, 3, 6, 9, 12, 15, 16]
    assert column("plots/validation.csv", "step") == [5, 10, 15, 16]
    assert [step for step, values in points if "loss" in values] == [1, 3, 6, 9, 12, 15, 16]
    assert [step for step, values in points if "validation_loss" in values] == [5, 10, 15, 16]


class Late(train.Training):
    """Reads steps as it does on a GPU."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self._late = True


@pytest.mark.parametrize("log_interval", [1, 3])
def test_reading_a_step_late_changes_no_figure(workspace, log_interval):
    found = []
    for kind in (train.Training, Late):
        run_training(workspace({"train": {"log_interval": log_interval}}), kind)
        found.append([column("plots/train.csv", name) for name in ("step", "tokens", "loss", "learning_rate", "grad_norm")])
    assert found[0] == found[1]
    assert found[0][0][-1] == STEPS


def test_the_same_seed_gives_the_same_bytes(workspace):
    found = []
    for seed in (1, 1, 2):
        run_training(workspace({"seed": seed, "model": {"dropout": 0.1}}))
        found.append([path.read_bytes() for folder in (train.BEST, train.LAST) for path in sorted(folder.iterdir())])
    assert len(found[0]) >= 6
    assert found[0] == found[1] != found[2]


def test_dynamic_accumulation_shows_in_the_points(workspace):
    dynamic = {"max_steps": 4, "patience": 1, "min_improvement": 10.0}  # no gain is ever enough
    _, points = run_training(workspace({"train": {"dynamic_accumulation": dynamic, "validation_interval": 1, "max_tokens": 1536}}))
    assert [values["accumulation_steps"] for _, values in points if "loss" in values][:4] == [1, 1, 2, 4]


@pytest.mark.slow  # MLflow makes its store
def test_without_a_tokenizer_nothing_is_trained(workspace, monkeypatch, capfd):
    workspace()
    Path("data/tokenizer/tokenizer.json").unlink()
    Path("data/tokenizer").rmdir()
    with pytest.raises(SystemExit):
        train.main()
    assert "data/tokenizer is missing" in capfd.readouterr().err
    assert not Path("plots").exists()
