"""The FLOPs formula against torch's own counter, the matmul rate against arithmetic that is known."""

import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, BertConfig, GPT2Config, LlamaConfig

from stages.profiling import throughput
from stages.profiling.throughput import matmul_rate, matmul_shapes, model_flops, model_matmul_rate

CPU = torch.device("cpu")
SEQUENCE, VOCABULARY = 24, 101
MODELS = {
    "gpt2": (AutoModelForCausalLM, GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=VOCABULARY, n_positions=SEQUENCE, bos_token_id=0, eos_token_id=0)),
    "llama": (
        AutoModelForCausalLM,
        LlamaConfig(
            num_hidden_layers=3, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=12, intermediate_size=56, vocab_size=VOCABULARY
        ),
    ),
    "bert": (
        AutoModelForMaskedLM,
        BertConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=VOCABULARY, max_position_embeddings=SEQUENCE),
    ),
}


def make(name: str) -> torch.nn.Module:
    kind, config = MODELS[name]
    return kind.from_config(config, attn_implementation="eager")


@pytest.mark.parametrize("name", MODELS)
def test_formula_equals_the_flop_counter(name):
    model, tokens = make(name), torch.randint(0, VOCABULARY, (3, SEQUENCE))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens).logits.sum().backward()
    flops = model_flops(model, SEQUENCE, causal=False)  # eager attention computes the half that a causal mask removes
    assert counter.get_total_flops() == flops.per_token * tokens.numel() > 0


def test_causal_attention_counts_the_keys_that_are_seen():
    model = make("gpt2")
    seen = sum(range(1, SEQUENCE + 1)) / SEQUENCE
    whole, causal = (model_flops(model, SEQUENCE, causal=causal) for causal in (False, True))
    assert causal.attention == pytest.approx(whole.attention * seen / SEQUENCE)
    assert (causal.body, causal.head) == (whole.body, whole.head)


def test_head_counts_predicted_positions_only_and_tied_weights_count():
    whole, some = (model_flops(make("bert"), SEQUENCE, causal=False, predicted_share=share) for share in (1.0, 0.15))
    assert whole.head == 6 * 32 * VOCABULARY
    assert some.head == pytest.approx(0.15 * whole.head)
    assert some.body == whole.body


def test_checkpointing_does_not_change_the_count():
    model = make("gpt2")
    before = model_flops(model, SEQUENCE, causal=True)
    model.gradient_checkpointing_enable()
    assert model_flops(model, SEQUENCE, causal=True) == before


@pytest.mark.parametrize("name", MODELS)
def test_shapes_are_input_by_output(name):
    model = make(name)
    shapes = matmul_shapes(model)
    assert sum(shapes.values()) * 6 == model_flops(model, 0, causal=False).body + model_flops(model, 0, causal=False).head
    wide = {"gpt2": (32, 96), "llama": (32, 56), "bert": (32, 64)}[name]  # attention's input, the feed-forward's
    assert wide in shapes
    assert (32, VOCABULARY) in shapes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matmul_rate_agrees_with_a_stopwatch(dtype):
    rate = matmul_rate(96, 96, 96, dtype=dtype, device=CPU)
    left, seconds = torch.randn(96, 96).to(dtype), []
    for _ in range(5):  # the best of them: the first is cold, and others may be interrupted
        started = time.perf_counter()
        for _ in range(100):
            left @ left
        seconds.append(time.perf_counter() - started)
    assert rate == pytest.approx(100 * 2 * 96**3 / min(seconds), rel=0.9)
    assert rate > 1e7


def test_a_slow_product_lowers_the_rate(monkeypatch):
    multiply = torch.mm

    def slow(*operands, **kwargs):
        time.sleep(0.01)
        return multiply(*operands, **kwargs)

    monkeypatch.setattr(throughput.torch, "mm", slow)
    assert matmul_rate(64, 64, 64, dtype=torch.float32, device=CPU) < 2 * 64**3 / 0.01


def test_rate_of_the_models_own_shapes_lies_among_them(monkeypatch):
    monkeypatch.setattr(throughput, "matmul_rate", lambda rows, inner, columns, **_: float(inner * columns))
    model = make("gpt2")
    rates = [inner * columns for inner, columns in matmul_shapes(model)]
    assert len(rates) == 5
    assert min(rates) < model_matmul_rate(model, 8, dtype=torch.float32, device=CPU) < max(rates)
