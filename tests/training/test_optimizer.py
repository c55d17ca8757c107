"""AdamW: what decays, the fused kernel and its absence, the gradient norm."""

import pytest
import torch
from torch import nn

from stages.training.optimizer import adamw, clip, from_params, global_norm, is_fused, set_learning_rate, trained
from tests.training.made import ARCHITECTURES, make_adamw, make_model, make_params


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_matrices_decay_biases_and_norms_do_not(architecture):
    model = make_model(architecture)
    optimizer = make_adamw(model, weight_decay=0.1)
    decays = {id(parameter): group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    names = dict(model.named_parameters())
    assert len(decays) == len(names) > 10
    for name, parameter in names.items():
        assert decays[id(parameter)] == (0.0 if parameter.ndim == 1 else 0.1), name
    assert {decays[id(p)] for n, p in names.items() if "bias" in n or "norm" in n.lower() or "ln_" in n} <= {0.0}
    assert decays[id(model.get_input_embeddings().weight)] == 0.1


def test_tied_weights_are_updated_once():
    model = make_model("gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    parameters = trained(make_adamw(model))
    assert len({id(parameter) for parameter in parameters}) == len(parameters)


def test_frozen_parameters_are_left_out():
    model = nn.Linear(3, 3)
    model.bias.requires_grad_(False)
    optimizer = make_adamw(model)
    assert len(optimizer.param_groups) == 1
    assert [id(parameter) for parameter in trained(optimizer)] == [id(model.weight)]


def test_settings_come_from_params():
    train = make_params({"train": {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.3, "fused_optimizer": False}}).train
    optimizer = from_params(nn.Linear(2, 2), train)
    assert [(group["betas"], group["eps"], group["weight_decay"]) for group in optimizer.param_groups] == [((0.8, 0.99), 1e-6, 0.3), ((0.8, 0.99), 1e-6, 0.0)]
    assert not is_fused(optimizer)


def test_without_a_fused_kernel_a_warning_says_so():
    """A real refusal of torch: fused AdamW wants real numbers."""
    model = nn.Linear(3, 3, dtype=torch.complex64)
    assert is_fused(make_adamw(nn.Linear(3, 3)))
    with pytest.warns(UserWarning, match=r"train.fused_optimizer is true, but there is no fused AdamW here"):
        optimizer = adamw(model, learning_rate=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, epsilon=1e-8, fused=True)
    assert not is_fused(optimizer)


def test_the_norm_is_over_all_gradients_and_clipping_reaches_it():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    count = sum(parameter.numel() for parameter in model.parameters())
    norm = global_norm(model.parameters())
    assert float(norm) == pytest.approx(2 * count**0.5)
    for limit, expected in ((None, float(norm)), (1e6, float(norm)), (0.5, 0.5)):
        clip(list(model.parameters()), global_norm(model.parameters()), limit)
        assert float(global_norm(model.parameters())) == pytest.approx(expected, rel=1e-4)


def test_the_rate_is_set_in_every_group():
    optimizer = make_adamw(make_model())
    assert set_learning_rate(optimizer, 0.25) == 0.25
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
