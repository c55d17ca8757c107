"""Int8 in eager torch: Conv1D layers are reached, ties are kept, and what is stored comes back."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from stages.quantization.eager import TokenTable, assemble, quantize
from stages.quantization.runtimes import TorchSession
from tests.quantization.made import VOCABULARY, WIDTH, make_model, some_tokens

ARCHITECTURES = ["gpt2", "llama", "bert"]


@pytest.mark.parametrize(("architecture", "layers"), [("gpt2", 5), ("llama", 8), ("bert", 8)])
def test_every_layer_is_quantized_also_those_of_gpt2(architecture: str, layers: int) -> None:
    tensors, counts = quantize(make_model(architecture))
    assert (counts.layers, counts.tables) == (layers, 1)
    assert counts.share > 0.9
    assert sum(tensor.dtype == torch.int8 for tensor in tensors.values()) == layers + (architecture == "llama")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_stored_comes_back(architecture: str) -> None:
    tensors, _ = quantize(make_model(architecture))
    again = assemble(make_model(architecture), load(save(tensors)))
    first = assemble(make_model(architecture), tensors)
    tokens = some_tokens(2, 12)
    assert np.array_equal(TorchSession(again)(tokens), TorchSession(first)(tokens))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_stay_close_whatever_weights_the_new_model_had(architecture: str) -> None:
    model = make_model(architecture)
    tokens = some_tokens(2, 12)
    exact = TorchSession(model)(tokens)
    tensors, _ = quantize(model)
    other = make_model(architecture)
    with torch.no_grad():
        for weight in other.parameters():
            weight.normal_()
    got = TorchSession(assemble(other, tensors))(tokens)
    assert 0 < np.abs(got - exact).max() < 0.08 * np.abs(exact).max()


@pytest.mark.skipif("qnnpack" not in torch.backends.quantized.supported_engines, reason="this torch has no kernels for ARM")
def test_the_kernels_of_apple_silicon_are_taken_and_compute_nearly_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = SimpleNamespace(engine="none", supported_engines=["qnnpack", "none"])
    with monkeypatch.context() as patched:
        patched.setattr(torch.backends, "quantized", engines)
        tensors, _ = quantize(make_model("gpt2"))
        assemble(make_model("gpt2"), tensors)
    assert engines.engine == "qnnpack"
    monkeypatch.setattr(torch.backends.quantized, "engine", engines.engine)
    tokens = some_tokens(2, 12)
    exact = TorchSession(make_model("gpt2"))(tokens)
    assert 0 < np.abs(TorchSession(assemble(make_model("gpt2"), tensors))(tokens) - exact).max() < 0.08 * np.abs(exact).max()


@pytest.mark.parametrize("architecture", ["gpt2", "bert"])
def test_tied_weights_stay_tied(architecture: str) -> None:
    tensors, _ = quantize(make_model(architecture))
    assert sum(tensor.shape == (VOCABULARY, WIDTH) for tensor in tensors.values()) == 1
    model = assemble(make_model(architecture), tensors)
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(table, TokenTable)
    assert torch.equal(head.weight().int_repr(), table.values)
    assert torch.equal(head.weight().q_per_channel_scales().float(), table.scales)


def test_an_untied_head_keeps_its_own_weights() -> None:
    tensors, _ = quantize(make_model("llama"))
    assert not torch.equal(tensors["model.embed_tokens.int8"], tensors["lm_head.int8"])


def test_quantizing_does_not_change_the_model() -> None:
    model = make_model("gpt2")
    tokens = some_tokens(1, 9)
    before = TorchSession(model)(tokens)
    quantize(model)
    assert np.abs(TorchSession(model)(tokens) - before).max() < 1e-6


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda tensors: tensors.pop("transformer.ln_f.weight"), "ln_f.weight"),
        (lambda tensors: tensors.pop("transformer.h.0.mlp.c_fc.int8"), "c_fc.int8"),
        (lambda tensors: tensors.update({"transformer.extra": torch.zeros(1)}), "extra"),
    ],
)
def test_weights_of_another_model_are_refused(spoil: Callable[[dict[str, torch.Tensor]], object], says: str) -> None:
    tensors, _ = quantize(make_model("gpt2"))
    spoil(tensors)
    with pytest.raises(ValueError, match=says):
        assemble(make_model("gpt2"), tensors)


def test_a_broken_weight_is_not_mended() -> None:
    model = make_model("gpt2")
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
    tensors, _ = quantize(model)
    with pytest.raises(RuntimeError, match="min should be less than or equal to max"):  # torch's way to say that an activation is NaN
        TorchSession(assemble(make_model("gpt2"), tensors))(some_tokens(1, 4))


def test_a_model_without_linear_layers_has_nothing_to_quantize() -> None:
    class Empty(nn.Module):
        def get_input_embeddings(self) -> None:
            return None

    tensors, counts = quantize(Empty())
    assert not tensors and counts.layers == 0
