"""Conv1D to nn.Linear changes the layers, not a bit of the numbers."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from stages.models.linearize import linearize
from tests.models.made import batch, network


def test_gpt2_computes_the_same_bits() -> None:
    model, (inputs, _) = network(), batch()
    expected = model(input_ids=inputs).logits
    assert linearize(model) == 8
    assert torch.equal(model(input_ids=inputs).logits, expected)
    assert not any(isinstance(part, Conv1D) for part in model.modules())
    assert sum(isinstance(part, nn.Linear) for part in model.modules()) == 9


def test_the_head_stays_tied_to_the_embedding() -> None:
    model = network()
    linearize(model)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_it_draws_no_random_numbers_and_keeps_mode_and_gradients() -> None:
    model = network().train()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    linearize(model)
    assert torch.equal(torch.get_rng_state(), before)
    layer = model.transformer.h[0].attn.c_attn
    assert layer.training and layer.weight.requires_grad and layer.weight.is_contiguous()


@pytest.mark.parametrize(("architecture", "objective"), [("llama", "causal"), ("bert", "masked")])
def test_models_without_conv1d_are_left_alone(architecture: str, objective: str) -> None:
    model = network(architecture, objective)
    parts = list(model.modules())
    assert linearize(model) == 0
    assert list(model.modules()) == parts
