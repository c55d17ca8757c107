"""Networks are what params.yaml says, from the seed alone, or the reason why not."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PretrainedConfig

from stages.models.build import build
from stages.models.heads import summed_loss
from stages.models.sizes import set_behaviour
from tests.models.made import ALL, CAPPED, TESTED, VOCAB, tiny

IDS = {"vocab_size": VOCAB, "end_of_text": 0, "pad_token": 1}


@pytest.mark.parametrize(("architecture", "objective"), [*ALL, ("gpt_neo", "causal"), CAPPED])
def test_sizes_are_those_asked_for(architecture: str, objective: str) -> None:
    attention = "eager" if architecture in ("gpt_neo", CAPPED[0]) else "sdpa"
    model = build(tiny(architecture, objective, num_layers=3, hidden_size=48, num_heads=6, attention=attention), **IDS, seed=1)
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.vocab_size) == (3, 48, 6, VOCAB)
    assert model.get_output_embeddings().weight.shape[0] == VOCAB
    assert (config.eos_token_id, config.pad_token_id, config.use_cache) == (0, 1, False)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert model.training


@pytest.mark.parametrize(("architecture", "objective"), ALL)
def test_the_longest_sequence_fits(architecture: str, objective: str) -> None:
    """RoBERTa and its kin begin to count positions behind the padding id."""
    model = build(tiny(architecture, objective, sequence_length=40), **IDS, seed=1)
    assert model(input_ids=torch.full((1, 40), 5)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("architecture", "objective", "inner"), [("gpt2", "causal", 128), ("bert", "masked", 128), ("llama", "causal", 96), ("qwen2", "causal", 96)]
)
def test_the_inner_size_is_four_times_or_eight_thirds_where_gated(architecture: str, objective: str, inner: int) -> None:
    model = build(tiny(architecture, objective), **IDS, seed=1)
    assert inner in {size for parameter in model.parameters() for size in parameter.shape}


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = build(tiny(), **IDS, seed=7).state_dict()
    torch.rand(5)
    again, other = build(tiny(), **IDS, seed=7).state_dict(), build(tiny(), **IDS, seed=8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["transformer.wte.weight"], other["transformer.wte.weight"])


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    build(tiny(), **IDS, seed=7)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("architecture", "objective"), TESTED)
def test_every_dropout_is_set(architecture: str, objective: str) -> None:
    for share in (0.0, 0.3):
        model = build(tiny(architecture, objective, dropout=share), **IDS, seed=1)
        layers = [part for part in model.modules() if isinstance(part, torch.nn.Dropout)]
        attention = [part.attention_dropout for part in model.modules() if hasattr(part, "attention_dropout") and isinstance(part.attention_dropout, float)]
        assert len(layers) + len(attention) >= 2
        assert {part.p for part in layers} | set(attention) == {share}
        inputs = torch.full((1, 8), 5)
        same = torch.equal(model(input_ids=inputs).logits, model(input_ids=inputs).logits)
        assert same == (share == 0)


@pytest.mark.parametrize(("fused", "name"), [(True, "gelu_pytorch_tanh"), (False, "gelu_new")])
def test_the_fused_activation_is_the_same_mathematics(fused: bool, name: str) -> None:
    model = build(tiny(fused_activation=fused), **IDS, seed=1).eval()
    assert model.config.activation_function == name
    other = build(tiny(fused_activation=not fused), **IDS, seed=1).eval()
    inputs = torch.arange(20)[None]
    torch.testing.assert_close(model(input_ids=inputs).logits, other(input_ids=inputs).logits, atol=1e-6, rtol=1e-5)


def test_eager_attention_is_the_same_mathematics() -> None:
    inputs = torch.arange(20)[None]
    one, other = (build(tiny(attention=attention), **IDS, seed=1).eval()(input_ids=inputs).logits for attention in ("sdpa", "eager"))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), [case for case in ALL if case[1] == "causal"])
def test_a_causal_network_sees_nothing_to_come(architecture: str, objective: str) -> None:
    model = build(tiny(architecture, objective), **IDS, seed=1).eval()
    inputs = torch.arange(20)[None]
    changed = inputs.clone()
    changed[0, 12:] = 3
    torch.testing.assert_close(model(input_ids=inputs).logits[:, :12], model(input_ids=changed).logits[:, :12], atol=1e-7, rtol=0)


@pytest.mark.parametrize(("architecture", "objective"), [case for case in ALL if case[1] == "masked"])
def test_a_masked_network_sees_both_sides(architecture: str, objective: str) -> None:
    model = build(tiny(architecture, objective), **IDS, seed=1).eval()
    inputs = torch.arange(20)[None]
    changed = inputs.clone()
    changed[0, 12:] = 3
    assert not torch.allclose(model(input_ids=inputs).logits[:, :12], model(input_ids=changed).logits[:, :12], atol=1e-7, rtol=0)


@pytest.mark.parametrize(("architecture", "objective"), [*TESTED, ("cohere", "causal")])
def test_it_builds_and_trains_on_fake_tensors(architecture: str, objective: str) -> None:
    """What a memory prediction needs: nothing reads a value."""
    with FakeTensorMode():
        model = build(tiny(architecture, objective), **IDS, seed=1)
        inputs = torch.zeros(2, 24, dtype=torch.long)
        summed_loss(model, inputs, inputs, chunk=16, predicted=20).backward()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gtp2"}, ["gtp2", "did you mean", "gpt2"]),
        ({"architecture": "lama"}, ["lama", "llama"]),
        ({"architecture": "gpt2", "objective": "masked"}, ["gpt2", "no head", "model.objective: causal", "bert"]),
        ({"architecture": "vit"}, ["vit", "no head", "gpt2"]),
        ({"architecture": "distilbert"}, ["distilbert", "no head", "model.objective: masked"]),
        ({"architecture": "mamba"}, ["mamba", "num_attention_heads"]),
        ({"architecture": "mobilebert", "objective": "masked"}, ["mobilebert", "head"]),
        ({"architecture": "plbart"}, ["plbart", "num_heads"]),
        ({"architecture": "cohere_compass_text"}, ["cohere_compass_text", "KeyError"]),
        ({"architecture": "bart"}, ["bart", "model.num_layers: 2"]),
        ({"architecture": "bart", "objective": "masked"}, ["bart", "decoder", "bert"]),
        ({"architecture": CAPPED[0]}, [CAPPED[0].capitalize(), "model.attention: eager"]),
    ],
    ids=lambda value: str(value.get("architecture")) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused_in_plain_words(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as refusal:
        build(tiny(**changes), **IDS, seed=1)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize("sequence_length", [2, 3, 7])
@pytest.mark.parametrize(("architecture", "objective"), TESTED)
def test_a_very_short_sequence_is_no_fault(architecture: str, objective: str, sequence_length: int) -> None:
    model = build(tiny(architecture, objective, sequence_length=sequence_length), seed=1, **IDS)
    assert model(input_ids=torch.zeros(1, sequence_length, dtype=torch.long)).logits.shape == (1, sequence_length, VOCAB)


def test_sizes_that_only_a_forward_pass_stumbles_over_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.architecture: 'modernbert' cannot be built or run with these sizes \(RuntimeError"):
        build(tiny("modernbert", "masked", hidden_size=36, num_heads=4), seed=1, **IDS)  # heads of 9, which rotary positions cannot halve


def test_a_dropout_that_the_architecture_has_no_place_for_is_refused() -> None:
    config = PretrainedConfig()
    set_behaviour(config, tiny(dropout=0.0))
    with pytest.raises(ValueError, match=r"model\.dropout: 0\.2.* has no dropout; set it to 0\.0"):
        set_behaviour(config, tiny(dropout=0.2))
