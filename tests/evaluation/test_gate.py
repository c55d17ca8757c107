"""The gate says which threshold, which figure, met or missed."""

import math
from typing import Any

import pytest

from stages.evaluation.gate import judge
from stages.params import Evaluate


def evaluate(**gate: Any) -> Evaluate:
    asked = {"max_perplexity": None, "max_bits_per_byte": None, "min_masked_accuracy": None, "fail_stage": False}
    samples = {"prompts": [], "tokens": 1, "temperature": 0.0, "top_k": 1}
    return Evaluate.model_validate({"batch_size": 1, "stride": None, "samples": samples, "gate": asked | gate})


@pytest.mark.parametrize(
    ("gate", "figures", "passed"),
    [
        ({"max_perplexity": 50.0}, {"perplexity": 49.9}, True),
        ({"max_perplexity": 50.0}, {"perplexity": 50.0}, True),
        ({"max_perplexity": 50.0}, {"perplexity": 50.1}, False),
        ({"max_perplexity": 50.0}, {"perplexity": math.inf}, False),
        ({"max_bits_per_byte": 1.7}, {"bits_per_byte": 1.71}, False),
        ({"min_masked_accuracy": 0.3}, {"masked_accuracy": 0.31}, True),
        ({"min_masked_accuracy": 0.3}, {"masked_accuracy": 0.29}, False),
    ],
)
def test_a_threshold_is_held_against_its_figure(gate: dict[str, float], figures: dict[str, float], passed: bool) -> None:
    verdict = judge(evaluate(**gate), {"perplexity": 1.0, **figures})
    (message,) = verdict.messages
    ((threshold, value),) = gate.items()
    assert verdict.passed == passed
    assert verdict.missed == ([] if passed else [message])
    assert f"evaluate.gate.{threshold} {value:g}" in message
    assert ("meets" if passed else "misses") in message


def test_one_missed_threshold_of_two_is_enough_to_fail() -> None:
    verdict = judge(evaluate(max_perplexity=50.0, max_bits_per_byte=1.0), {"perplexity": 40.0, "bits_per_byte": 1.5})
    assert not verdict.passed
    assert len(verdict.messages) == 2
    assert len(verdict.missed) == 1


def test_nothing_asked_is_passed() -> None:
    assert judge(evaluate(), {"perplexity": 1e9}).passed
