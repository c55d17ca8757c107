"""The stage `quantize`: what it leaves behind, what it says, how it ends."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from stages import quantize
from stages.models.storage import load as load_model
from stages.quantization.runtimes import load
from stages.tracking.curves import read
from tests.quantization.made import VOCABULARY, learn, make_model, make_params, make_tokens, save_model

LEARNED_PERPLEXITY = 30


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a GPT-2 that has learned something."""
    return save_model(learn(make_model("gpt2")), tmp_path_factory.mktemp("learned") / "model")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learned: Path) -> Iterator[Callable[..., None]]:
    """A folder in which the stage can run; a function that sets its params."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    make_tokens(Path("data/tokens"))
    copytree(learned, "models/model")

    def configure(changes: dict[str, Any] | None = None) -> None:
        with Path("params.yaml").open("w", encoding="utf-8") as file:
            YAML().dump(make_params("gpt2", changes).model_dump(mode="json"), file)

    yield configure


def report() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path("reports/quantize.json").read_text("utf-8"))
    return values


@pytest.mark.slow
def test_the_whole_stage(workspace: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> None:
    workspace()
    quantize.main()
    values = report()
    assert 1 < values["fp32"]["perplexity"] < LEARNED_PERPLEXITY
    assert values["best"] in ("onnxruntime", "torch") and values[values["best"]]["verdict"] == "best"
    assert all(values[name]["accepted"] == 1 and values[name]["size_ratio"] < 0.6 for name in ("onnxruntime", "torch"))
    assert json.loads(Path("models/quantized/manifest.json").read_text("utf-8"))["variant"] == values["best"]
    assert load("models/quantized")([[3, 4, 5]]).shape == (1, 3, VOCABULARY)
    curve = read("plots/quantization.csv")
    assert curve["variant"] == ["fp32", "onnxruntime", "torch"]
    assert curve["bytes"] == [values[name]["bytes"] for name in curve["variant"]]
    assert [path.name for path in Path("models").iterdir() if path.name.startswith(".")] == [], "no half-made variants stay"
    output = capfd.readouterr()
    assert all(word in output.out for word in ("onnxruntime", "torch", "prefill", "verdict", "best"))
    assert "Warning" not in output.out + output.err


def test_one_variant_alone_is_the_best(workspace: Callable[..., None]) -> None:
    workspace({"quantize": {"variants": ["torch"]}})
    quantize.main()
    assert report()["best"] == "torch" and "onnxruntime" not in report()
    assert {path.name for path in Path("models/quantized").iterdir()} >= {"manifest.json", "int8.safetensors", "config.json", "tokenizer.json"}


def test_when_every_variant_is_refused_the_stage_fails_and_reports_why(workspace: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> None:
    workspace({"quantize": {"variants": ["torch"], "max_perplexity_increase": 0.01}})
    model = load_model(Path("models/model"))
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[:, 5] *= 1000
    save_model(model, Path("models/model").absolute())
    with pytest.raises(SystemExit) as stopped:
        quantize.main()
    assert stopped.value.code == 1
    error = capfd.readouterr().err
    assert "quantize.variants" in error and "torch: perplexity is" in error and "quantize.max_perplexity_increase" in error and "Traceback" not in error
    assert report()["best"] == "none" and report()["torch"]["accepted"] == 0 and report()["torch"]["perplexity_increase"] > 0.01
    assert not Path("models/quantized").exists()


def test_without_a_model_it_says_what_to_run(workspace: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> None:
    workspace()
    Path("models/model/config.json").unlink()
    with pytest.raises(SystemExit):
        quantize.main()
    assert "dvc repro train" in capfd.readouterr().err
