"""The loss in chunks is the loss of the model's own logits, with the same gradients."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.models import heads
from stages.models.heads import IGNORED, summed_loss, token_losses, token_scores
from tests.models.made import ALL, CAPPED, SCALED, TESTED, batch, network


def reference(model: Any, inputs: Tensor, labels: Tensor) -> Tensor:
    """Token losses (batch, sequence) of the model's own full logits."""
    logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits.float()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED).view_as(labels)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """The norm of the difference, over the norm."""
    assert found.keys() == expected.keys() and len(expected) > 10
    difference = sum(float((found[name].double() - expected[name].double()).square().sum()) for name in expected) ** 0.5
    size = sum(float(value.double().square().sum()) for value in expected.values()) ** 0.5
    assert difference <= tolerance * size


@pytest.mark.parametrize(("architecture", "objective"), ALL)
def test_token_losses_are_those_of_the_models_own_logits(architecture: str, objective: str) -> None:
    model, (inputs, labels) = network(architecture, objective), batch()
    expected = reference(model, inputs, labels)
    assert expected.max() > 1
    for chunk in (1, 7, 512):
        torch.testing.assert_close(token_losses(model, inputs, labels, chunk=chunk), expected, atol=1e-5, rtol=1e-5)
    predicted = int((labels != IGNORED).sum())
    torch.testing.assert_close(token_losses(model, inputs, labels, chunk=7, predicted=predicted), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(summed_loss(model, inputs, labels, chunk=7), expected.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), [*TESTED, *SCALED, ("roberta", "masked")])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("select", [True, False])
def test_gradients_are_those_of_the_full_logits(architecture: str, objective: str, fused: bool, select: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "FUSED", fused)
    model, (inputs, labels) = network(architecture, objective), batch()
    predicted = int((labels != IGNORED).sum()) if select else None
    found = gradients(model, summed_loss(model, inputs, labels, chunk=7, predicted=predicted))
    assert_close(found, gradients(model, reference(model, inputs, labels).sum()), 1e-5)


def test_this_torch_has_the_fused_loss() -> None:
    assert heads.FUSED


@pytest.mark.parametrize(("architecture", "objective"), TESTED)
def test_padding_counts_nothing(architecture: str, objective: str) -> None:
    """A short document costs the same alone and beside a long one; so do its gradients."""
    model, (inputs, labels) = network(architecture, objective), batch(rows=2, ignored=0)
    short = 5
    alone = token_losses(model, inputs[:1, :short], labels[:1, :short], chunk=7)
    mask = torch.ones_like(inputs, dtype=torch.bool)
    mask[0, short:] = False
    padded_inputs, padded_labels = inputs.masked_fill(~mask, 1), labels.masked_fill(~mask, IGNORED)
    beside = token_losses(model, padded_inputs, padded_labels, mask, chunk=7)
    torch.testing.assert_close(beside[:1, :short], alone, atol=1e-5, rtol=1e-5)
    assert not beside[0, short:].any()
    torch.testing.assert_close(beside[1:], token_losses(model, inputs[1:], labels[1:], chunk=7), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), [*TESTED, SCALED[0]])
@pytest.mark.parametrize("predicted", [0, None])
def test_nothing_to_predict_is_no_loss_and_no_gradient(architecture: str, objective: str, predicted: int | None) -> None:
    model, (inputs, labels) = network(architecture, objective), batch()
    loss = summed_loss(model, inputs, torch.full_like(labels, IGNORED), chunk=7, predicted=predicted)
    assert loss.item() == 0
    found = gradients(model, loss)
    assert found and not any(value.any() for value in found.values())
    assert not token_losses(model, inputs, torch.full_like(labels, IGNORED), chunk=7, predicted=predicted).any()


@pytest.mark.parametrize(("architecture", "objective"), TESTED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_loss_is_float32_of_the_models_autocast_logits(architecture: str, objective: str, dtype: torch.dtype) -> None:
    model, (inputs, labels) = network(architecture, objective), batch()
    with torch.autocast("cpu", dtype):
        expected = reference(model, inputs, labels)
        loss = summed_loss(model, inputs, labels, chunk=7)
        losses = token_losses(model, inputs, labels, chunk=7)
    assert loss.dtype == losses.dtype == torch.float32
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, expected.sum(), rtol=1e-5, atol=1e-5)
    assert_close(gradients(model, loss), gradients(model, expected.sum()), 2e-2)


def test_capped_logits_are_capped() -> None:
    model, (inputs, labels) = network(*CAPPED, attention="eager"), batch()
    model.config.final_logit_softcapping = 0.5
    expected = reference(model, inputs, labels)
    torch.testing.assert_close(token_losses(model, inputs, labels, chunk=7), expected, atol=1e-5, rtol=1e-5)
    assert_close(gradients(model, summed_loss(model, inputs, labels, chunk=7)), gradients(model, reference(model, inputs, labels).sum()), 1e-5)


def test_scores_say_which_labels_were_the_first_choice() -> None:
    model, (inputs, labels) = network(), batch()
    best = model(input_ids=inputs).logits.argmax(-1)
    labels[1] = best[1]
    _, hits = token_scores(model, inputs, labels, chunk=7)
    assert torch.equal(hits, best == labels)
    assert hits[1].all() and not hits[0, :7].any()


def test_the_bias_of_the_head_counts() -> None:
    model, (inputs, labels) = network("bert", "masked"), batch()
    before = summed_loss(model, inputs, labels, chunk=7)
    with torch.no_grad():
        model.get_output_embeddings().bias[5] = 9.0
    torch.testing.assert_close(summed_loss(model, inputs, labels, chunk=7), reference(model, inputs, labels).sum())
    assert summed_loss(model, inputs, labels, chunk=7) > before + 1


def test_dropout_inside_the_body_is_the_models_own() -> None:
    model, (inputs, labels) = network(dropout=0.5).train(), batch()
    torch.manual_seed(3)
    expected = reference(model, inputs, labels).sum()
    torch.manual_seed(3)
    torch.testing.assert_close(summed_loss(model, inputs, labels, chunk=7), expected)


@pytest.mark.parametrize("architecture", ["gpt2", "cohere"])
def test_the_model_is_left_as_it_was(architecture: str) -> None:
    model, (inputs, labels) = network(architecture), batch()
    kinds, logits = [type(part) for part in model.modules()], model(input_ids=inputs).logits
    summed_loss(model, inputs, labels, chunk=7)
    assert [type(part) for part in model.modules()] == kinds
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(input_ids=inputs).logits, logits)


def test_a_head_that_is_no_plain_linear_layer_is_called_as_it_is() -> None:
    """As a dynamically quantized one is: its weight is no tensor."""

    class Doubled(nn.Module):
        def __init__(self, linear: nn.Module) -> None:
            super().__init__()
            self.linear = linear

        def weight(self) -> None:
            raise AssertionError

        def forward(self, hidden: Tensor) -> Tensor:
            return 2 * self.linear(hidden)

    model, (inputs, labels) = network(), batch()
    model.lm_head = Doubled(model.lm_head)
    torch.testing.assert_close(token_losses(model, inputs, labels, chunk=7), reference(model, inputs, labels))
    torch.testing.assert_close(summed_loss(model, inputs, labels, chunk=7), reference(model, inputs, labels).sum())


def test_a_compiled_model_is_one_graph_with_the_same_loss() -> None:
    model, (inputs, labels) = network(), batch()
    expected = gradients(model, summed_loss(model, inputs, labels, chunk=7))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        found = gradients(model, summed_loss(compiled, inputs, labels, chunk=7))
    assert_close(found, expected, 1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
