"""The int8 graph: every linear layer and the token table are int8, stored once, and nothing else changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from torch import nn

from stages.quantization.counts import Counts
from stages.quantization.rewrite import rewrite
from stages.quantization.rows import quantize_rows
from stages.quantization.runtimes import OnnxSession, TorchSession
from tests.quantization.made import VOCABULARY, WIDTH, some_tokens

ARCHITECTURES = ["gpt2", "llama", "bert"]
Exported = Callable[[str], tuple[Any, Path]]


def rewritten(exported: Exported, architecture: str, folder: Path) -> tuple[Any, onnx_ir.Model, Counts, OnnxSession]:
    model, path = exported(architecture)
    graph = onnx_ir.load(path)
    counts = rewrite(graph, vocab_size=VOCABULARY, parameters=sum(weight.numel() for weight in model.parameters()))
    onnx_ir.save(graph, folder / "int8.onnx")
    return model, graph, counts, OnnxSession(folder / "int8.onnx")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_linear_layer_and_the_token_table_are_int8(architecture: str, exported: Exported, tmp_path: Path) -> None:
    model, graph, counts, _ = rewritten(exported, architecture, tmp_path)
    linears = sum(isinstance(module, nn.Linear) for module in model.modules())
    assert linears >= 5
    assert (counts.layers, counts.tables) == (linears, 1)
    assert counts.share > 0.9
    left = [value.shape for value in graph.graph.initializers.values() if value.const_value is not None and value.const_value.dtype == onnx_ir.DataType.FLOAT]
    assert max(int(np.prod(shape)) for shape in left) <= 512 * WIDTH // 8, "only norms, biases, scales and positions stay float32"


@pytest.mark.parametrize(("architecture", "tables"), [("gpt2", 1), ("bert", 1), ("llama", 2)])
def test_a_tied_table_is_stored_once(architecture: str, tables: int, exported: Exported, tmp_path: Path) -> None:
    model, graph, counts, _ = rewritten(exported, architecture, tmp_path)
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) is (tables == 1)
    vocabulary = [value for value in graph.graph.initializers.values() if value.shape is not None and VOCABULARY in value.shape and len(value.shape) == 2]
    assert [value.const_value.dtype for value in vocabulary if value.const_value is not None] == [onnx_ir.DataType.UINT8] * tables
    stored = sum(int(np.prod(module.weight.shape)) for module in model.modules() if isinstance(module, nn.Linear))
    assert counts.quantized_parameters == stored + (tables - 1) * VOCABULARY * WIDTH


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_stay_close(architecture: str, exported: Exported, tmp_path: Path) -> None:
    model, _, _, session = rewritten(exported, architecture, tmp_path)
    tokens = some_tokens(2, 24)
    exact = TorchSession(model)(tokens)
    assert 0 < np.abs(session(tokens) - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_cache_still_works(architecture: str, exported: Exported, tmp_path: Path) -> None:
    *_, session = rewritten(exported, architecture, tmp_path)
    tokens = some_tokens(1, 12)
    first, cache = session.extend(tokens[:, :8])
    second, _ = session.extend(tokens[:, 8:], cache)
    whole = session(tokens)
    assert np.abs(np.concatenate([first, second], axis=1) - whole).max() < 0.05 * np.abs(whole).max()


def test_a_token_outside_the_vocabulary_is_an_error(exported: Exported, tmp_path: Path) -> None:
    *_, session = rewritten(exported, "gpt2", tmp_path)
    with pytest.raises(Exception, match=r"out of (data )?bounds"):
        session([[VOCABULARY]])


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_gemm_is_a_linear_layer_too(transposed: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    weight, bias = generator.standard_normal((8, 24)).astype(np.float32), generator.standard_normal(8).astype(np.float32)
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[rows, 24] x) => (float[rows, 8] logits) '
    graph = onnx_ir.from_onnx_text(text + f"{{ logits = Gemm <transB = {transposed}> (x, weight, bias) }}")
    for name, array in (("weight", weight if transposed else np.ascontiguousarray(weight.T)), ("bias", bias)):
        tensor = onnx_ir.Tensor(array, name=name)
        old = next(value for node in graph.graph for value in node.inputs if value is not None and value.name == name)
        old.const_value, old.shape, old.type = tensor, tensor.shape, onnx_ir.TensorType(tensor.dtype)
        graph.graph.register_initializer(old)
    counts = rewrite(graph, vocab_size=VOCABULARY, parameters=weight.size + bias.size)
    assert (counts.layers, counts.quantized_parameters) == (1, weight.size)
    onnx_ir.save(graph, tmp_path / "gemm.onnx")
    x = generator.standard_normal((5, 24)).astype(np.float32)
    got = onnxruntime.InferenceSession(tmp_path / "gemm.onnx").run(None, {"x": x})[0]
    assert np.abs(got - (x @ quantize_rows(weight).dequantized().T + bias)).max() < 0.15
