"""The validation loss: by token, independent of batch sizes, without a trace on the model."""

import pytest
import torch

from stages.data.batches import IGNORED
from stages.training.precision import Precision
from stages.training.validation import mean_loss
from tests.training.made import ARCHITECTURES, cut, flat, make_batch, make_model, padded, whole

CPU = torch.device("cpu")
FP32 = Precision("fp32", "cpu")
LENGTHS = [16, 3, 9, 16, 1, 12, 5, 16, 2, 16]


def loss_of(model, batches, precision=FP32):
    return mean_loss(model, batches, precision=precision, device=CPU, loss_chunk=16)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_does_not_depend_on_the_batch_size(architecture):
    """CASES: evaluation loss changes with batch size or an uneven last batch."""
    objective, model = ARCHITECTURES[architecture], make_model(architecture, dropout=0.2)
    for batch in (whole(10, objective), padded(LENGTHS, objective)):
        found = [loss_of(model, cut(batch, size)) for size in (1, 3, 7, 64)]
        assert found == pytest.approx([found[0]] * 4, abs=1e-5)
        logits = model.eval()(input_ids=batch.inputs, attention_mask=batch.attention_mask).logits
        reference = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED).item()
        assert found[0] == pytest.approx(reference, abs=1e-5)


def test_a_document_alone_has_the_loss_it_has_beside_a_long_one():
    """CASES: padding counted in perplexity."""
    model = make_model()
    short, long = cut(padded([3, 16]), 1)
    alone = loss_of(model, [make_batch(short.inputs[:, :3], short.labels[:, :3])])
    padded_alone = loss_of(model, [short])
    both = loss_of(model, [padded([3, 16])])
    assert padded_alone == pytest.approx(alone, abs=1e-5)
    assert both == pytest.approx((3 * alone + 16 * loss_of(model, [long])) / 19, abs=1e-5)


def test_it_leaves_mode_gradients_weights_and_random_numbers_alone():
    model = make_model(dropout=0.5).train()
    before, state = flat(model.parameters()), torch.get_rng_state()
    first = loss_of(model, [whole(2)])
    assert first == loss_of(model, [whole(2)]), "dropout must be off"
    assert model.training
    assert torch.equal(before, flat(model.parameters()))
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_runs_in_the_same_precision_as_training():
    model = make_model()
    reference, half = loss_of(model, [whole(4)]), loss_of(model, [whole(4)], Precision("bf16", "cpu"))
    assert half != reference
    assert half == pytest.approx(reference, rel=1e-2)


def test_nothing_to_predict_is_an_error():
    empty = make_batch(torch.full((2, 16), 5), torch.full((2, 16), IGNORED))
    for batches in ([], [empty]):
        with pytest.raises(ValueError, match=r"validation split has no token to predict; hold out more in data.validation"):
            loss_of(make_model("bert"), batches)
