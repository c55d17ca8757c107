"""The exported graph computes what the model computes, for every batch, length and cache, and the export keeps quiet."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.quantization.export import export
from stages.quantization.runtimes import OnnxSession, TorchSession
from tests.quantization.made import make_model, some_tokens

SHAPES = [(1, 1), (1, 32), (3, 17)]
CLOSE = 1e-5


@pytest.fixture(params=["gpt2", "llama", "bert"])
def pair(request: pytest.FixtureRequest, exported: Callable[[str], tuple[Any, Path]]) -> tuple[str, TorchSession, OnnxSession]:
    """The architecture, its model in torch, and the same exported."""
    model, path = exported(request.param)
    return request.param, TorchSession(model), OnnxSession(path)


def largest_difference(left: Any, right: Any) -> float:
    return float(np.abs(left - right).max())


def test_same_logits(pair: tuple[str, TorchSession, OnnxSession]) -> None:
    _, torch_session, onnx_session = pair
    assert len(SHAPES) == 3
    for shape in SHAPES:
        tokens = some_tokens(*shape)
        assert largest_difference(torch_session(tokens), onnx_session(tokens)) < CLOSE


def test_a_cache_continues_as_if_all_was_read_at_once(pair: tuple[str, TorchSession, OnnxSession]) -> None:
    architecture, torch_session, onnx_session = pair
    tokens = some_tokens(2, 20)
    if architecture == "bert":
        with pytest.raises(ValueError, match="no cache"):
            onnx_session.extend(tokens)
        return
    cache, parts = None, []
    for start, stop in ((0, 7), (7, 8), (8, 20)):
        logits, cache = onnx_session.extend(tokens[:, start:stop], cache)
        parts.append(logits)
    assert largest_difference(np.concatenate(parts, axis=1), torch_session(tokens)) < CLOSE


def test_padding_is_masked(pair: tuple[str, TorchSession, OnnxSession]) -> None:
    architecture, torch_session, onnx_session = pair
    tokens, mask = some_tokens(2, 12), np.ones((2, 12), np.int64)
    mask[1, 5:] = 0
    if architecture != "bert":
        with pytest.raises(ValueError, match="without padding"):
            onnx_session(tokens, mask)
        return
    padded = onnx_session(tokens, mask)
    assert largest_difference(padded, torch_session(tokens, mask)) < CLOSE
    assert largest_difference(padded[1, :5], onnx_session(tokens[1:, :5])[0]) < CLOSE


def test_nothing_is_printed_and_the_graph_carries_no_source_lines(capfd: pytest.CaptureFixture[str]) -> None:
    model = make_model("gpt2")
    model.config.architectures = ["GPT2LMHeadModel"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = export(model)
    out = "".join(capfd.readouterr())
    assert not out.strip()
    assert not [str(warning.message) for warning in caught]
    assert all(not node.metadata_props and not node.doc_string for node in graph.graph)
