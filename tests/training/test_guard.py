"""Values that are not finite: the run stops in the first such step, and the weights stay good."""

import math
import statistics
import time

import pytest
import torch

from stages.training.fit import fit
from stages.training.guard import CHECK_INTERVAL, Guard
from stages.training.length import Length
from stages.training.precision import Precision
from stages.training.readback import Readback
from stages.training.schedule import schedule
from stages.training.step import NonFiniteError
from tests.training.made import cut, flat, make_adamw, make_model, whole

CPU = torch.device("cpu")
CONSTANT = schedule("constant", peak=1e-3)


def poison_before(step_number, model):
    """on_step that puts NaN into one weight, so that step `step_number` is the first to see it."""

    def on_step(step) -> None:
        step.loss  # noqa: B018  # read, as a log does
        if step.index == step_number - 1:
            with torch.no_grad():
                next(model.parameters()).view(-1)[:] = math.nan

    return on_step


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_nan_weight_stops_the_run_in_its_step(precision):
    """CASES: NaN in one weight at step 3."""
    model, scaler = make_model(), torch.amp.GradScaler("cpu", enabled=precision == "fp16", init_scale=64.0)
    with pytest.raises(NonFiniteError, match=r"loss of step 3 is nan.*train.learning_rate") as raised:
        fit(
            model,
            iter([whole(2)] * 9),
            make_adamw(model),
            length=Length("steps", 9),
            learning_rate=CONSTANT,
            precision=Precision(precision, "cpu"),
            scaler=scaler,
            on_step=poison_before(3, model),
        )
    assert raised.value.step == 3


def test_learning_rate_far_too_high_stops_with_its_step_and_finite_weights():
    """CASES: the loss becomes NaN some way into training."""
    model, seen = make_model(), []
    with pytest.raises(NonFiniteError) as raised:
        fit(
            model,
            iter([whole(2, seed=seed) for seed in range(20)]),
            make_adamw(model, weight_decay=0.0),
            length=Length("steps", 20),
            learning_rate=schedule("constant", peak=1e30),
            on_step=lambda step: seen.append((step.index, step.loss)),
        )
    assert raised.value.step == seen[-1][0] + 1, "every step before the bad one was shown, the bad one never"
    assert all(math.isfinite(loss) for _, loss in seen)
    assert bool(torch.isfinite(flat(model.parameters())).all())


def test_an_infinite_gradient_under_a_finite_loss_stops_too():
    model = make_model()
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda gradient: gradient.fill_(math.inf))
    before = flat(model.parameters())
    with pytest.raises(NonFiniteError, match="gradient norm of step 1 is inf"):
        fit(model, iter([whole(2)]), make_adamw(model), length=Length("steps", 1), learning_rate=CONSTANT)
    assert torch.equal(before, flat(model.parameters()))


class Later(Guard):
    """The guard as it works on a GPU: nothing is looked at before somebody asks."""

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self._at_once = False


def test_on_a_gpu_the_first_bad_step_is_right_and_no_bad_update_lands(monkeypatch):
    """Nothing reads a loss until the end; the fused optimizer leaves the weights alone from the bad step on."""
    monkeypatch.setattr("stages.training.fit.Guard", Later)
    reference = make_model()
    fit(reference, iter([whole(2, seed=seed) for seed in range(3)]), make_adamw(reference), length=Length("steps", 3), learning_rate=CONSTANT)
    model, steps = make_model(), []

    def break_step_4(gradient):
        return gradient.fill_(math.nan) if len(steps) == 3 else gradient

    model.transformer.h[0].mlp.c_fc.weight.register_hook(break_step_4)
    optimizer = make_adamw(model)
    with pytest.raises(NonFiniteError, match="step 4 "):
        fit(
            model,
            iter([whole(2, seed=seed) for seed in range(8)]),
            optimizer,
            length=Length("steps", 8),
            learning_rate=CONSTANT,
            on_step=lambda step: steps.append(step),
        )
    assert len(steps) == 8
    assert torch.equal(flat(model.parameters()), flat(reference.parameters()))
    for step in steps:
        assert math.isfinite(step.learning_rate)


def test_reading_a_loss_finds_the_bad_step():
    guard = Later(make_adamw(make_model()), CPU, scaled=False, max_skipped_steps=2)
    for step, loss in enumerate((1.0, math.nan, 1.0), 1):
        guard.observe(step, torch.tensor(loss), torch.tensor(1.0))
    guard.check(1)
    with pytest.raises(NonFiniteError, match="step 2 "):
        guard.check(2)


def test_what_waits_to_be_looked_at_stays_bounded():
    guard = Later(make_adamw(make_model()), CPU, scaled=False, max_skipped_steps=2)
    for step in range(1, 3 * CHECK_INTERVAL):
        guard.observe(step, torch.tensor(1.0), torch.tensor(1.0))
        assert len(guard._pending) < CHECK_INTERVAL


def test_fp16_overflow_in_every_step_ends_the_run():
    """CASES: the loss scale falls for ever, every step is skipped."""
    model = make_model()
    before = flat(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=0.99)
    seen = []
    with pytest.raises(NonFiniteError, match=r"overflowed in 5 steps in a row.*max_skipped_steps.*step 5.*train.loss_scale.initial") as raised:
        fit(
            model,
            iter([whole(2)] * 20),
            make_adamw(model),
            length=Length("steps", 20),
            learning_rate=CONSTANT,
            precision=Precision("fp16", "cpu"),
            scaler=scaler,
            max_skipped_steps=5,
            on_step=lambda step: seen.append((step.skipped, step.grad_norm)),
        )
    assert (raised.value.step, raised.value.skipped_steps) == (5, 5)
    assert len(seen) == 4
    assert all(skipped and not math.isfinite(norm) for skipped, norm in seen)
    assert torch.equal(before, flat(model.parameters()))


def test_fp16_skipped_steps_are_counted_and_training_goes_on():
    model, skipped = make_model(), []
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-16)
    result = fit(
        model,
        iter(cut(whole(16), 2)),
        make_adamw(model),
        length=Length("steps", 8),
        learning_rate=CONSTANT,
        precision=Precision("fp16", "cpu"),
        scaler=scaler,
        max_skipped_steps=4,
        on_step=lambda step: skipped.append(step.skipped),
    )
    assert 1 <= result.skipped_steps < 4
    assert result.skipped_steps == sum(skipped)
    assert skipped[-1] is False


def test_waiting_for_the_device_is_a_part_of_the_step(monkeypatch):
    """Where a step is queued in no time and read late, its seconds are those that the reader waited, and not the reader's own."""
    monkeypatch.setattr("stages.training.fit.Guard", Later)
    read, wait, work = Readback.read, 0.2, 0.3

    def slowly(readback):
        time.sleep(wait)
        return read(readback)

    monkeypatch.setattr(Readback, "read", slowly)
    seconds = []

    def on_step(step):
        seconds.append(step.seconds)
        step.check()
        time.sleep(work)

    model = make_model()
    batches = iter([whole(2, seed=seed) for seed in range(5)])
    fit(model, batches, make_adamw(model), length=Length("steps", 5), learning_rate=CONSTANT, on_step=on_step)
    assert len(seconds) == 5
    assert min(seconds[1:]) >= wait
    assert statistics.median(seconds[1:]) < wait + work
