"""The same logits in a fresh process, and a difference where there is one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.quantization.reload import difference
from stages.quantization.runtimes import load
from tests.quantization.made import some_tokens


@pytest.mark.parametrize("variant", ["onnxruntime", "torch"])
def test_a_fresh_process_gives_the_same_bits(variant: str, quantized: Callable[[str, str], Any]) -> None:
    folder = quantized("gpt2", variant).folder
    threads = torch.get_num_threads()
    assert difference(folder, load(folder, threads), some_tokens(2, 20), threads) == 0.0


def test_another_model_is_told_apart(quantized: Callable[[str, str], Any]) -> None:
    folder, other = (quantized("gpt2", variant).folder for variant in ("onnxruntime", "torch"))
    assert difference(folder, load(other), some_tokens(1, 8), 1) > 1e-3


def test_a_process_that_fails_says_why(quantized: Callable[[str, str], Any], tmp_path: Path) -> None:
    session = load(quantized("gpt2", "onnxruntime").folder)
    with pytest.raises(RuntimeError, match=r"manifest\.json is missing"):
        difference(tmp_path, session, some_tokens(1, 4), 1)
