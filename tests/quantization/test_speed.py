"""Speeds: lengths that fit the model, every session measured alike."""

from collections.abc import Callable
from typing import Any

import pytest

from stages.quantization.runtimes import TorchSession, load
from stages.quantization.speed import fitting_lengths, side_by_side
from tests.quantization.made import make_model, some_tokens


@pytest.mark.parametrize(
    ("prefill", "decode", "positions", "expected"),
    [
        (128, 64, 256, (128, 64)),
        (128, 64, 192, (128, 64)),
        (128, 64, 128, (64, 64)),
        (128, 64, 32, (16, 16)),
        (128, 0, 64, (64, 0)),
        (1000, 10, 100, (90, 10)),
        (128, 64, None, (128, 64)),
    ],
)
def test_lengths_fit_the_positions(prefill: int, decode: int, positions: int | None, expected: tuple[int, int]) -> None:
    assert fitting_lengths(prefill, decode, positions) == expected


def test_every_session_gets_both_speeds(quantized: Callable[[str, str], Any]) -> None:
    made = quantized("gpt2", "onnxruntime")
    speeds = side_by_side({"fp32": TorchSession(made.model), "int8": load(made.folder)}, some_tokens(1, 16), 4)
    assert list(speeds) == ["fp32", "int8"]
    for speed in speeds.values():
        assert speed.prefill_tokens_per_second > 0
        assert speed.decode_tokens_per_second is not None and speed.decode_tokens_per_second > 0


def test_a_masked_model_has_no_decode_speed() -> None:
    speeds = side_by_side({"fp32": TorchSession(make_model("bert"))}, some_tokens(1, 16), 0)
    assert speeds["fp32"].prefill_tokens_per_second > 0 and speeds["fp32"].decode_tokens_per_second is None
