"""The loop: the same gradient however a step is cut, counts by token, honest ends."""

import math

import pytest
import torch

from stages.data.batches import IGNORED
from stages.models.heads import summed_loss
from stages.training.fit import fit
from stages.training.length import Length
from stages.training.schedule import schedule
from stages.training.step import Stop
from tests.training.made import ARCHITECTURES, SEQUENCE, cut, flat, make_adamw, make_batch, make_model, padded, whole

CONSTANT = schedule("constant", peak=1e-3)
UNEQUAL = [16, 3, 9, 16, 1, 12, 5, 16]


class Recorder:
    """on_step that keeps what it saw."""

    def __init__(self) -> None:
        self.steps, self.losses, self.norms = [], [], []

    def __call__(self, step) -> None:
        self.steps.append(step)
        self.losses.append(step.loss)
        self.norms.append(step.grad_norm)


class Gradient(torch.optim.SGD):
    """An optimizer that only keeps the gradient it was given."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, lr=0.0)
        self.seen = []

    def step(self, closure=None) -> None:
        self.seen.append(flat(p.grad if p.grad is not None else torch.zeros_like(p) for group in self.param_groups for p in group["params"]))


def gradients(model, batches, accumulation):
    optimizer, recorder = Gradient(model.parameters()), Recorder()
    fit(model, iter(batches), optimizer, length=Length("steps", 10**6), learning_rate=CONSTANT, accumulation=accumulation, loss_chunk=8, on_step=recorder)
    return optimizer.seen, recorder


def difference(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("batch_kind", ["whole", "padded"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gradient_is_the_same_however_a_step_is_cut(architecture, batch_kind):
    objective = ARCHITECTURES[architecture]
    batch = whole(8, objective) if batch_kind == "whole" else padded(UNEQUAL, objective)
    model = make_model(architecture)
    (reference,), whole_step = gradients(model, [batch], 1)
    assert reference.norm() > 0
    cases = 0
    for size, accumulation in ((4, 2), (2, 4), (1, 8), (3, 3), (5, 2)):  # the last two leave a smaller micro-batch
        (gradient,), recorder = gradients(model, cut(batch, size), accumulation)
        assert difference(gradient, reference) <= 1e-6
        assert recorder.losses[0] == pytest.approx(whole_step.losses[0], rel=1e-6)
        assert recorder.norms[0] == pytest.approx(whole_step.norms[0], rel=1e-5)
        assert recorder.steps[0].accumulation_steps == math.ceil(8 / size)
        cases += 1
    assert cases == 5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gradient_is_that_of_the_mean_over_predicted_tokens(architecture):
    """Against the model's own logits and the textbook loss."""
    objective = ARCHITECTURES[architecture]
    batch, model = padded(UNEQUAL, objective), make_model(architecture)
    (gradient,), recorder = gradients(model, cut(batch, 2), 4)
    logits = model(input_ids=batch.inputs, attention_mask=batch.attention_mask).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED)
    loss.backward()
    assert difference(gradient, flat(p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters())) <= 1e-5
    assert recorder.losses[0] == pytest.approx(loss.item(), rel=1e-6)


def test_last_group_of_an_epoch_counts_its_own_tokens():
    """CASES: 10 sequences, batch 2, accumulation 4: groups of 4 and 1 train like batch 8 then batch 2."""
    batch = whole(10)
    grouped, plain = make_model(), make_model()
    seen = Recorder()
    run = {"length": Length("steps", 10**6), "learning_rate": CONSTANT, "loss_chunk": 16}
    fit(grouped, iter(cut(batch, 2)), make_adamw(grouped), accumulation=4, on_step=seen, **run)
    eight, two = cut(batch, 8)
    fit(plain, iter([eight, two]), make_adamw(plain), accumulation=1, **run)
    assert [step.accumulation_steps for step in seen.steps] == [4, 1]
    assert [step.predicted for step in seen.steps] == [8 * SEQUENCE, 2 * SEQUENCE]
    assert difference(flat(grouped.parameters()), flat(plain.parameters())) <= 1e-5


def test_fewer_micro_batches_than_accumulation_make_one_step_an_epoch():
    """CASES: 3 batches, accumulation 8: exactly one step an epoch, scaled by its own tokens."""
    epochs = [batch for epoch in range(3) for batch in cut(whole(6, epoch=epoch, seed=epoch), 2)]
    model, seen = make_model(), Recorder()
    result = fit(model, iter(epochs), make_adamw(model), length=Length("epochs", 3, 6), learning_rate=CONSTANT, accumulation=8, on_step=seen)
    assert [(step.epoch, step.accumulation_steps, step.tokens) for step in seen.steps] == [(epoch, 3, 6 * SEQUENCE) for epoch in range(3)]
    assert result.steps == 3
    (reference,), _ = gradients(make_model(), [whole(6)], 1)
    assert seen.norms[0] == pytest.approx(float(reference.norm()), rel=1e-5)


def test_loss_is_weighted_by_token_not_by_micro_batch():
    """CASES: documents of 3 and 60 real tokens: the token-weighted mean, for accumulation 1 and 2 alike."""
    model = make_model(sequence_length=64)
    tokens = torch.randint(3, 97, (2, 65), generator=torch.Generator().manual_seed(3))
    real = torch.arange(64)[None] < torch.tensor([[3], [60]])
    batch = make_batch(tokens[:, :-1].masked_fill(~real, 1), tokens[:, 1:].masked_fill(~real, IGNORED), real)
    assert batch.predicted == 63
    one, two = gradients(model, [batch], 1)[1].losses, gradients(model, cut(batch, 1), 2)[1].losses
    with torch.no_grad():
        sums = [summed_loss(model, part.inputs, part.labels, part.attention_mask, chunk=64).item() for part in cut(batch, 1)]
    assert one[0] == pytest.approx(sum(sums) / 63, abs=1e-6)
    assert two[0] == pytest.approx(sum(sums) / 63, abs=1e-6)
    assert abs(sums[0] / 3 - sums[1] / 60) > 1e-3, "the two documents must differ for this to say anything"


def test_a_group_without_anything_to_predict_is_read_but_is_no_step():
    """CASES: a masked batch in which no token was chosen."""
    empty = make_batch(torch.full((2, SEQUENCE), 5), torch.full((2, SEQUENCE), IGNORED))
    model, seen = make_model("bert"), Recorder()
    before = flat(model.parameters())
    result = fit(model, iter([empty]), make_adamw(model), length=Length("steps", 5), learning_rate=CONSTANT, on_step=seen)
    assert (result.steps, result.empty_groups, result.tokens, seen.losses) == (0, 1, 2 * SEQUENCE, [])
    assert torch.equal(before, flat(model.parameters()))

    result = fit(model, iter([empty, whole(2, "masked"), empty]), make_adamw(model), length=Length("steps", 5), learning_rate=CONSTANT, on_step=seen)
    assert (result.steps, result.empty_groups) == (1, 2)
    assert math.isfinite(seen.losses[0])


def test_an_empty_micro_batch_does_not_change_its_step():
    empty = make_batch(torch.full((2, SEQUENCE), 5), torch.full((2, SEQUENCE), IGNORED))
    model, full = make_model("bert"), whole(2, "masked")
    (reference,), alone = gradients(model, [full], 1)
    (gradient,), beside = gradients(model, [full, empty], 2)
    assert difference(gradient, reference) <= 1e-6
    assert beside.losses == pytest.approx(alone.losses, rel=1e-6)


def test_length_in_tokens_ends_with_the_step_that_reaches_it():
    for tokens, steps in ((1, 1), (128, 1), (129, 2), (256, 2)):
        model = make_model()
        result = fit(model, iter([whole(8)] * 5), make_adamw(model), length=Length("tokens", tokens), learning_rate=CONSTANT)
        assert (result.steps, result.tokens) == (steps, steps * 128)
        assert result.tokens - tokens < 128


def test_length_in_seconds_ends_in_time_and_its_first_rate_is_not_zero():
    model, seen = make_model(), Recorder()
    result = fit(
        model,
        iter([whole(2)] * 10**5),
        make_adamw(model),
        length=Length("seconds", 0.5),
        learning_rate=schedule("cosine", peak=1e-3, warmup=0.5),
        on_step=seen,
    )
    assert 0.5 <= result.seconds < 5
    assert 0 < seen.steps[0].learning_rate < 1e-3
    assert sum(step.seconds for step in seen.steps) <= result.seconds


def test_fractions_of_an_epoch():
    model = make_model()
    epochs = [batch for epoch in range(3) for batch in cut(whole(8, epoch=epoch), 2)]
    result = fit(model, iter(epochs), make_adamw(model), length=Length("epochs", 1.5, 8), learning_rate=CONSTANT)
    assert (result.steps, result.epoch, result.sequences) == (6, 1, 4)


def test_rates_are_taken_at_the_middle_of_the_steps():
    model, seen = make_model(), Recorder()
    rates = schedule("cosine", peak=1e-3, warmup=0.25, final=0.1)
    fit(model, iter([whole(2)] * 8), make_adamw(model), length=Length("tokens", 8 * 32), learning_rate=rates, on_step=seen)
    assert [step.learning_rate for step in seen.steps] == pytest.approx([rates((index + 0.5) / 8) for index in range(8)])
    assert seen.steps[0].learning_rate == pytest.approx(0.25e-3)
    assert seen.steps[-1].progress == 1


def test_on_step_may_stop_it():
    def stop_at_two(step) -> None:
        if step.index == 2:
            raise Stop

    model = make_model()
    result = fit(model, iter([whole(2)] * 9), make_adamw(model), length=Length("steps", 9), learning_rate=CONSTANT, on_step=stop_at_two)
    assert (result.steps, result.stopped) == (2, True)


def test_gradients_are_clipped_by_their_global_norm():
    model = make_model()
    optimizer, recorder = Gradient(model.parameters()), Recorder()
    run = {"length": Length("steps", 1), "learning_rate": CONSTANT}
    fit(model, iter([whole(4)]), optimizer, clip_norm=1e-2, on_step=recorder, **run)
    assert recorder.norms[0] > 1e-2
    assert float(optimizer.seen[0].norm()) == pytest.approx(1e-2, rel=1e-3)
    unclipped = Gradient(model.parameters())
    fit(model, iter([whole(4)]), unclipped, clip_norm=1e9, **run)
    assert float(unclipped.seen[0].norm()) == pytest.approx(recorder.norms[0], rel=1e-6)


def test_gradients_are_gone_afterwards_and_nothing_grows():
    model = make_model()
    fit(model, iter([whole(2)] * 3), make_adamw(model), length=Length("steps", 3), learning_rate=CONSTANT)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_depends_on_the_batch_alone():
    batches = cut(whole(4), 2)

    def losses(first, seed=1):
        seen = Recorder()
        model = make_model(dropout=0.3)
        torch.manual_seed(first)
        torch.rand(first)  # what was drawn before must not matter
        fit(model, iter(batches), make_adamw(model), length=Length("steps", 2), learning_rate=CONSTANT, seed=seed, on_step=seen)
        return seen.losses

    assert losses(1) == losses(99)
    assert losses(1) != losses(1, seed=2)
    assert losses(1)[0] != pytest.approx(make_losses_without_dropout(batches)[0], abs=1e-4)


def make_losses_without_dropout(batches):
    seen, model = Recorder(), make_model(dropout=0.0)
    fit(model, iter(batches), make_adamw(model), length=Length("steps", 2), learning_rate=CONSTANT, on_step=seen)
    return seen.losses


def test_the_parts_of_a_step_are_marked():
    model = make_model()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        fit(model, iter(cut(whole(4), 2)), make_adamw(model), length=Length("steps", 1), learning_rate=CONSTANT, accumulation=2)
    counts = {event.key: event.count for event in trace.key_averages()}
    assert {name: counts[name] for name in ("data_wait", "host_to_device", "forward", "backward", "optimizer")} == {
        "data_wait": 1,
        "host_to_device": 2,
        "forward": 2,
        "backward": 2,
        "optimizer": 1,
    }
