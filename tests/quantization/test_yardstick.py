"""Perplexity by the evaluation's code: what torch computes by hand, the same for every session of one model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from stages.data.shards import open_split
from stages.quantization.runtimes import OnnxSession, TorchSession
from stages.quantization.yardstick import yardstick
from tests.quantization.made import SEQUENCE, make_model, make_params, make_tokens


def test_perplexity_is_that_of_the_test_split(tmp_path: Path) -> None:
    model, folder = make_model("gpt2"), make_tokens(tmp_path)
    changes = {"quantize": {"max_tokens": SEQUENCE + 1}}  # one window
    measured = yardstick(make_params("gpt2", changes), model, folder).perplexity(TorchSession(model))
    tokens = torch.from_numpy(open_split(folder, "test").read(0, SEQUENCE + 1))[None]
    with torch.no_grad():
        loss = F.cross_entropy(model(input_ids=tokens[:, :-1]).logits[0], tokens[0, 1:])
    assert measured == pytest.approx(float(loss.exp()), rel=1e-5)


@pytest.mark.parametrize("architecture", ["gpt2", "bert"])
def test_two_sessions_of_one_model_agree(architecture: str, exported: Callable[[str], tuple[Any, Path]], tmp_path: Path) -> None:
    model, path = exported(architecture)
    measure = yardstick(make_params(architecture), model, make_tokens(tmp_path)).perplexity
    assert measure(TorchSession(model)) == pytest.approx(measure(OnnxSession(path)), rel=1e-4)


def test_more_tokens_change_the_measure_and_the_prompt_is_the_split(tmp_path: Path) -> None:
    model, folder = make_model("gpt2"), make_tokens(tmp_path)
    few, all_of_it = (yardstick(make_params("gpt2", {"quantize": {"max_tokens": most}}), model, folder) for most in (64, None))
    session = TorchSession(model)
    assert few.perplexity(session) != all_of_it.perplexity(session)
    assert np.array_equal(few.prompt[0], open_split(folder, "test").read(0, 16)) and few.decode_tokens == 4


def test_masked_models_are_not_asked_to_generate(tmp_path: Path) -> None:
    assert yardstick(make_params("bert"), make_model("bert"), make_tokens(tmp_path)).decode_tokens == 0


def test_a_prompt_longer_than_the_split_is_cut(tmp_path: Path) -> None:
    assert yardstick(make_params("gpt2"), make_model("gpt2"), make_tokens(tmp_path, count=10)).prompt.shape == (1, 10)
