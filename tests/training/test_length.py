"""Lengths in tokens, epochs and seconds."""

import pytest

from stages.training.length import Length, from_params
from stages.training.step import Fit
from tests.training.made import make_params


@pytest.mark.parametrize(
    ("length", "expected"),
    [(Length("tokens", 4000), 0.25), (Length("seconds", 4), 0.5), (Length("steps", 70), 0.1), (Length("epochs", 3.0, sequences=20), (1 + 5 / 20) / 3)],
)
def test_progress_is_a_share_of_the_length(length, expected):
    assert length.progress(Fit(steps=7, tokens=1000, epoch=1, sequences=5, seconds=2.0)) == pytest.approx(expected)
    assert length.progress(Fit()) == 0
    assert length.progress(Fit(steps=10**9, tokens=10**9, epoch=10**9, seconds=1e9)) == 1


def test_whole_epochs_end_exactly():
    assert Length("epochs", 3, sequences=7).progress(Fit(epoch=2, sequences=7)) == 1.0
    assert Length("epochs", 3, sequences=7).progress(Fit(epoch=2, sequences=6)) < 1.0


@pytest.mark.parametrize(("key", "unit"), [("max_tokens", "tokens"), ("max_epochs", "epochs"), ("max_seconds", "seconds")])
def test_it_comes_from_params(key, unit):
    unset = {"max_tokens": None, "max_epochs": None, "max_seconds": None}
    train = make_params({"train": {**unset, key: 12}}).train
    assert from_params(train, 40) == Length(unit, 12, 40 if unit == "epochs" else 0)
