"""The page says whether the network learned anything, shows every stage, and leaves out what was not measured."""

from pathlib import Path
from typing import Any

import pytest

from stages.params import read
from stages.tracking import summary

REPORTS: dict[str, dict[str, Any]] = {
    "tokenize": {"train": {"tokens": 1000}, "vocab_size": 512, "seconds": {"start": 1.0, "tracking": 0.5, "total": 4.0, "encoding": 2.0}},
    "train": {
        "last_loss": 3.25,
        "tokens_per_second": 4400.0,
        "device_peak_bytes": None,
        "seconds": {"start": 1.0, "tracking": 0.5, "total": 60.0, "waiting": 1.0},
    },
    "profile": {"mfu": 0.8},
    "evaluate": {"loss": 3.0, "bits_per_byte": 1.63, "zlib_bits_per_byte": 2.63, "bz2_bits_per_byte": 1.81, "xz_bits_per_byte": 1.96, "gate_passed": 1},
    "quantize": {"best": "onnx|runtime", "onnx|runtime": {"size_ratio": 0.3, "perplexity_increase": -0.001}, "torch": {"size_ratio": 0.5}},
}


def test_the_page() -> None:
    page = summary.markdown("abc-1234", "1234567890", REPORTS, "# Samples\n\n## Prompt\n\nOnce upon a time\n")
    assert page.startswith("# abc-1234\n\n**1.630 bits per byte** on text it has not seen, fewer than bz2, the best compressor tried (1.810).\n")
    for line in (
        "| tokenize | tokens to train on | 1,000 |",
        "| train | loss of the last step | 3.25 |",
        "| profile | model FLOPs utilization | 80.0% |",
        "| evaluate | gate passed | yes |",
        "| quantize | onnx\\|runtime: size, share of fp32 | 0.300 |",
        "| quantize | onnx\\|runtime: change of perplexity | -0.10% |",
        "| **this model** | 1.630 |",
        "| train | 1m 01s | 58s | 1.0s | 1.5s |",
        "| all | 1m 05s | 1m 01s | 2.0s | 2.0s |",
    ):
        assert line in page, line
    assert "## Samples\n\n### Prompt\n" in page
    assert page.count("Samples") == 1
    assert "peak memory" not in page
    assert "`1234567890`" in page


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"bits_per_byte": 2.0, "bz2_bits_per_byte": 1.8}, "more than bz2"),
        ({"loss": 4.0, "unigram_loss": 6.0}, "below that of guessing"),
        ({"loss": 7.0, "unigram_loss": 6.0, "zlib_bits_per_byte": 2.0}, "not below that of guessing"),
        ({}, ""),
        ({"bits_per_byte": None, "loss": None, "zlib_bits_per_byte": 2.0}, ""),
    ],
)
def test_the_verdict(figures: dict[str, Any], words: str) -> None:
    verdict = summary.verdict({"evaluate": figures})
    assert words in verdict
    assert bool(verdict) is bool(words)


@pytest.mark.parametrize("reports", [{}, {"train": {}}, {name: {"seconds": {}} for name in REPORTS}])
def test_with_next_to_nothing(reports: dict[str, Any]) -> None:
    page = summary.markdown("x", "k", reports)
    assert page.startswith("# x\n")
    assert "## Samples" not in page


def test_the_headline_has_the_tables_figures() -> None:
    assert summary.headline(REPORTS) == {
        "tokenize": {"train.tokens": 1000, "vocab_size": 512},
        "train": {"last_loss": 3.25, "tokens_per_second": 4400.0},
        "profile": {"mfu": 0.8},
        "evaluate": {"loss": 3.0, "bits_per_byte": 1.63, "gate_passed": 1},
        "quantize": {"best": "onnx|runtime", "size_ratio": 0.3, "perplexity_increase": -0.001},
    }
    assert summary.headline({"quantize": {"best": "none"}}) == {}


def test_long_samples_are_cut_at_a_line() -> None:
    text = summary.shorten("a line\n" * 1000, 100)
    assert len(text) < 150
    assert text.endswith("a line\n\n(more in `evaluation/samples.md`)")


def test_the_settings_tell_experiments_apart() -> None:
    params = read(Path(__file__).parents[2] / "params.yaml").model_dump(mode="json")
    assert summary.settings(params) == "sotu; gpt2 4 x 256, causal; learning rate 0.002; batch 4 x 1 x 256 tokens."
