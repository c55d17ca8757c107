"""Verdicts: each ground for refusal, and which of several good variants is the best."""

import math
from typing import Any

import pytest

from stages.quantization.counts import Counts
from stages.quantization.speed import Speed
from stages.quantization.verdict import Figures, best, refusal

GOOD: dict[str, Any] = {
    "counts": Counts(layers=17, tables=1, quantized_parameters=98, parameters=100),
    "bytes": 27,
    "fp32_bytes": 100,
    "perplexity": 50.2,
    "fp32_perplexity": 50.0,
    "speed": Speed(2000.0, 300.0),
    "fp32_speed": Speed(1000.0, 200.0),
    "reload_difference": 0.0,
}


def figures(**changes: Any) -> Figures:
    return Figures(**{**GOOD, **changes})


def test_a_good_variant_is_accepted_and_reported_in_full() -> None:
    assert refusal(figures(), 0.01) is None
    assert figures().report() == {
        "layers_quantized": 17,
        "tables_quantized": 1,
        "share_quantized": 0.98,
        "bytes": 27,
        "size_ratio": 0.27,
        "perplexity": 50.2,
        "perplexity_increase": pytest.approx(0.004),
        "prefill_tokens_per_second": 2000.0,
        "prefill_speedup": 2.0,
        "decode_tokens_per_second": 300.0,
        "decode_speedup": 1.5,
        "reload_difference": 0.0,
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"counts": Counts(0, 0, 0, 100)}, "nothing was quantized"),
        ({"counts": Counts(0, 1, 50, 100)}, "nothing was quantized"),
        ({"bytes": 100}, "it grew"),
        ({"bytes": 112}, "it grew"),
        ({"perplexity": 50.6}, "1.20% worse"),
        ({"perplexity": math.nan}, "perplexity is nan"),
        ({"perplexity": math.inf}, "perplexity is inf"),
        ({"fp32_perplexity": math.nan}, "fp32 model nan"),
        ({"reload_difference": 0.5}, "fresh process"),
        ({"reload_difference": math.nan}, "fresh process"),
    ],
)
def test_each_ground_for_refusal(changes: dict[str, Any], says: str) -> None:
    assert says in str(refusal(figures(**changes), 0.01))


def test_the_limit_itself_is_allowed_and_a_better_perplexity_always() -> None:
    assert refusal(figures(fp32_perplexity=50.0, perplexity=50.0), 0.0) is None
    assert refusal(figures(perplexity=49.0), 0.0) is None


def test_the_smallest_wins() -> None:
    assert best({"fast": figures(bytes=60, speed=Speed(9000.0, None)), "small": figures(bytes=27)}) == "small"


def test_among_nearly_equal_sizes_the_fastest_wins() -> None:
    assert best({"slow": figures(bytes=100), "fast": figures(bytes=104, speed=Speed(9000.0, None))}) == "fast"


def test_a_masked_model_has_no_decode_figures() -> None:
    report = figures(speed=Speed(2000.0, None), fp32_speed=Speed(1000.0, None)).report()
    assert report["decode_tokens_per_second"] is None and report["decode_speedup"] is None
