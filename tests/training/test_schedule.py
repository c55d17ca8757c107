"""Learning rates: the shapes, their ends, and no zero at the first step."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.training.schedule import from_params, schedule
from tests.training.made import make_params

SHAPES = ("cosine", "warmup_stable_decay", "constant")


def test_cosine():
    rate = schedule("cosine", peak=2.0, warmup=0.2, final=0.1)
    assert [rate(x) for x in (0.1, 0.2, 0.6, 1.0)] == pytest.approx([1.0, 2.0, 1.1, 0.2])
    assert rate(0.4) == pytest.approx(2 * (0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2))


def test_warmup_stable_decay():
    rate = schedule("warmup_stable_decay", peak=2.0, warmup=0.1, decay=0.2, final=0.1)
    assert [rate(x) for x in (0.05, 0.1, 0.5, 0.8, 0.9, 1.0)] == pytest.approx([1.0, 2.0, 2.0, 2.0, 1.1, 0.2])


def test_constant():
    rate = schedule("constant", peak=2.0, warmup=0.5, final=0.1)
    assert [rate(x) for x in (0.25, 0.5, 1.0)] == pytest.approx([1.0, 2.0, 2.0])


@pytest.mark.parametrize("shape", SHAPES)
@given(progress=st.floats(1e-6, 1), warmup=st.floats(0, 0.99), decay=st.floats(0, 0.99), final=st.floats(0, 1))
def test_rates_lie_between_zero_and_the_peak_and_start_above_zero(shape, progress, warmup, decay, final):
    rate = schedule(shape, peak=1.0, warmup=warmup, decay=min(decay, 1 - warmup), final=final)
    assert 0 <= rate(progress) <= 1
    if progress < warmup:
        assert rate(progress) > 0
    assert rate(2.0) == rate(1.0)


def test_it_comes_from_params():
    train = make_params({"train": {"schedule": "cosine", "learning_rate": 0.5, "warmup": 0.1, "final_learning_rate": 0.2}}).train
    rate = from_params(train)
    assert [rate(x) for x in (0.05, 0.1, 1.0)] == pytest.approx([0.25, 0.5, 0.1])
