"""Activation checkpointing: which layers, the same gradient, less memory."""

import pytest
import torch

from stages.training.checkpoint import checkpoint_layers, is_layer
from stages.training.fit import fit
from stages.training.length import Length
from stages.training.schedule import schedule
from tests.training.made import ARCHITECTURES, flat, make_adamw, make_model, padded, whole


def trained(architecture, layers, dropout, batch):
    model, seen = make_model(architecture, dropout=dropout), []
    checkpoint_layers(model, layers)
    run = {"length": Length("steps", 2), "learning_rate": schedule("constant", peak=1e-3)}
    fit(model, iter([batch] * 2), make_adamw(model), on_step=lambda step: seen.extend((step.loss, step.grad_norm)), **run)
    return seen, flat(model.parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_training_is_the_same_with_and_without(architecture, dropout):
    cases = 0
    for batch in (whole(3, ARCHITECTURES[architecture]), padded([16, 4, 9], ARCHITECTURES[architecture])):
        reference, weights = trained(architecture, "none", dropout, batch)
        for layers in ("all", 2):
            figures, recomputed = trained(architecture, layers, dropout, batch)
            assert figures == pytest.approx(reference, rel=1e-6)
            torch.testing.assert_close(recomputed, weights, rtol=1e-6, atol=1e-7)
            cases += 1
    assert cases == 4


@pytest.mark.parametrize(("layers", "expected"), [("none", []), ("all", [0, 1, 2, 3, 4]), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3]), (5, [0])])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_nth_layer(architecture, layers, expected):
    model = make_model(architecture, num_layers=5)
    assert checkpoint_layers(model, layers) == len(expected)
    flags = [bool(module.gradient_checkpointing) for module in model.modules() if is_layer(module)]
    assert [index for index, flag in enumerate(flags) if flag] == expected
    assert len(flags) == 5


def test_more_than_the_model_has_is_refused():
    with pytest.raises(ValueError, match=r"train.activation_checkpointing is 3, but GPT2LMHeadModel has 2 layers.*at most 2"):
        checkpoint_layers(make_model(), 3)


def saved_bytes(layers):
    """Bytes kept for the backward, counted where autograd saves them."""
    model, kept = make_model(num_layers=4).train(), {}
    checkpoint_layers(model, layers)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(input_ids=whole(8).inputs).logits
    return sum(kept.values()) if output.requires_grad else None


def test_the_more_layers_the_less_is_kept():
    assert saved_bytes("all") < saved_bytes(2) < saved_bytes("none")
