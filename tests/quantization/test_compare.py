"""The whole comparison on real models: the figures, the limit on perplexity, what is refused and why."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.models.storage import load
from stages.quantization.compare import FP32, Comparison, compare, publish
from stages.quantization.compare import _measure as measure
from stages.quantization.compare import _perplexities as perplexities
from stages.quantization.convert import convert
from stages.quantization.runtimes import TorchSession
from stages.quantization.runtimes import load as load_quantized
from stages.quantization.verdict import refusal
from stages.quantization.yardstick import yardstick
from tests.quantization.made import VOCABULARY, make_params, make_tokens, save_model


def compared(folder: Path, place: Path, variants: list[str], limit: float = 0.01) -> Comparison:
    model = load(folder)
    tokens = make_tokens(place / "tokens")
    return compare(model, folder, place / "made", variants, yardstick(make_params(), model, tokens), max_perplexity_increase=limit)


def planted(folder: Path, place: Path, factor: float) -> Path:
    """The model in `folder` with one column of a weight matrix multiplied, as outliers of large models have it."""
    model = load(folder)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[:, 5] *= factor  # Conv1D: (in, out)
    return save_model(model, place / "planted")


@pytest.mark.slow
def test_both_variants_of_gpt2(source: Callable[[str], Path], tmp_path: Path) -> None:
    comparison = compared(source("gpt2"), tmp_path, ["onnxruntime", "torch"])
    assert comparison.best in ("onnxruntime", "torch") and not comparison.refusals
    report = comparison.report()
    assert list(report) == ["best", FP32, "onnxruntime", "torch"]
    assert 1 < report[FP32]["perplexity"] < 30 < VOCABULARY, "the model has learned the law, so the perplexities mean something"
    for name in ("onnxruntime", "torch"):
        figures = report[name]
        assert figures["layers_quantized"] == 5 and figures["share_quantized"] > 0.9
        assert figures["size_ratio"] < 0.6
        assert abs(figures["perplexity_increase"]) < 0.01
        assert figures["perplexity_increase"] == pytest.approx(figures["perplexity"] / report[FP32]["perplexity"] - 1)
        assert figures["reload_difference"] == 0.0
        assert figures["prefill_tokens_per_second"] > 0 and figures["decode_tokens_per_second"] > 0
        assert figures["accepted"] == 1
    publish(tmp_path / "made" / comparison.best, tmp_path / "models" / "quantized")
    assert load_quantized(tmp_path / "models" / "quantized")([[3, 4]]).shape == (1, 2, VOCABULARY)


def test_a_planted_outlier_is_reported_and_obeys_the_limit(source: Callable[[str], Path], tmp_path: Path) -> None:
    folder = planted(source("gpt2"), tmp_path, 1000)
    strict = compared(folder, tmp_path / "strict", ["torch"], limit=0.01)
    increase = strict.figures["torch"].perplexity_increase
    assert increase > 0.01
    assert strict.best is None and "worse" in strict.refusals["torch"]
    assert strict.report()["torch"]["accepted"] == 0 and strict.report()["best"] == "none"
    assert refusal(strict.figures["torch"], increase * 1.001) is None


def test_a_model_that_is_broken_itself_is_an_error(source: Callable[[str], Path], tmp_path: Path) -> None:
    folder = planted(source("gpt2"), tmp_path, math.nan)
    with pytest.raises(ValueError, match="loss on the test split is nan"):
        compared(folder, tmp_path, ["torch"])


def test_nan_of_a_variant_alone_is_no_perplexity(source: Callable[[str], Path], tmp_path: Path) -> None:
    class Broken(TorchSession):
        """A session whose arithmetic has failed."""

        def __call__(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return np.full_like(super().__call__(input_ids, attention_mask), np.nan)

    model = load(source("gpt2"))
    found = perplexities({FP32: TorchSession(model), "torch": Broken(model)}, yardstick(make_params(), model, make_tokens(tmp_path)))
    assert math.isfinite(found[FP32]) and math.isnan(found["torch"])


def test_a_variant_whose_arithmetic_fails_is_refused_and_the_others_are_measured(source: Callable[[str], Path], tmp_path: Path) -> None:
    class Broken(TorchSession):
        """A session that ends as torch does when an activation is NaN."""

        def __call__(self, input_ids: Any, attention_mask: Any = None) -> Any:
            raise RuntimeError("In ChooseQuantizationParams, min should be less than or equal to max")

        extend = __call__

    model = load(source("gpt2"))
    tokens = make_tokens(tmp_path / "tokens")
    sound = convert("torch", model, source("gpt2"), tmp_path / "torch")
    counts = {"torch": sound, "onnxruntime": sound}
    sessions = {FP32: TorchSession(model), "torch": load_quantized(tmp_path / "torch"), "onnxruntime": Broken(model)}
    comparison = Comparison(fp32_bytes=1 << 30)
    measure(sessions, counts, tmp_path, yardstick(make_params(), model, tokens), comparison, lambda _: None)
    assert "its perplexity is nan" in comparison.refusals["onnxruntime"]
    assert comparison.best == "torch"
    assert comparison.report()["onnxruntime"] == {"accepted": 0, "verdict": comparison.refusals["onnxruntime"]}


def test_publishing_replaces_what_stood_there(tmp_path: Path) -> None:
    for name in ("new", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name, encoding="utf-8")
    publish(tmp_path / "new", tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["new.txt"]
    assert not (tmp_path / "new").exists()
