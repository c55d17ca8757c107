"""The closing figures."""

import math

import pytest
import torch

from stages.training.guard import Guard
from stages.training.readback import Readback
from stages.training.step import Fit, Step
from stages.training.summary import Summary
from tests.training.made import make_adamw, make_model


def make_step(index, seconds=1.0, loss=2.0):
    guard = Guard(make_adamw(make_model()), torch.device("cpu"), scaled=False, max_skipped_steps=1)
    settings = {"learning_rate": 0.1, "tokens": 10, "total_tokens": 10 * index, "epoch": 0, "accumulation_steps": 1, "progress": 0.5}
    return Step(index=index, predicted=5, seconds=seconds, _figures=Readback(torch.tensor([5 * loss, 1.0])), _guard=guard, **settings)


def test_figures():
    summary = Summary()
    for index in range(1, 12):
        step = make_step(index, seconds=float(index), loss=4 - index / 10)
        summary.time(step)
        summary.loss(step)
    report = summary.report(Fit(steps=11, tokens=132, epoch=1, sequences=50, skipped_steps=2), sequences=100)
    assert (report["first_loss"], report["last_loss"]) == (pytest.approx(3.9), pytest.approx(2.9))
    assert report["epochs"] == 1.5
    assert report["tokens_per_second"] == pytest.approx(132 / 66)
    assert report["skipped_steps"] == 2
    assert report["seconds"] == pytest.approx({"training": 66, "validation": 0, "saving": 0, "epoch": 44, "step_median": 6, "step_p90": 10})


def test_the_best_validation_is_kept():
    summary, steps = Summary(), [make_step(index) for index in (1, 2, 3, 4)]
    assert [summary.validation(step, loss) for step, loss in zip(steps, (3.0, 2.5, 2.5, 2.7), strict=True)] == [True, True, False, False]
    assert (summary.best_validation_loss, summary.best_step, summary.validation_loss, summary.validated_step) == (2.5, 2, 2.7, 4)
    assert summary.validation(steps[3], math.nan) is False
