"""The headline numbers are those of plain transformers on the same windows, whatever the batch; a loss that is no number never passes."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from stages.data.batches import Blocks
from stages.data.shards import Shard
from stages.evaluation.likelihood import Likelihood, measure
from stages.evaluation.scoring import logits_scorer, model_scorer
from stages.evaluation.windows import Windows, hidden, sliding
from tests.evaluation.made import random_shard
from tests.models.made import SCALED, TESTED, VOCAB, network, tiny

CPU = torch.device("cpu")
LENGTH = 24


def windows(shard: Shard, objective: str, batch_size: int = 16, **options: Any) -> Iterator[Windows]:
    if objective == "causal":
        return sliding(shard, sequence_length=LENGTH, stride=None, batch_size=batch_size, **options)
    blocks = Blocks(shard, sequence_length=LENGTH, objective="masked", seed=7, mask_token=2, vocab_size=VOCAB, masked_share=0.3, partial=True)
    return hidden(blocks, batch_size, **options)


def likelihood(model: Any, shard: Shard, objective: str, batch_size: int = 16) -> Likelihood:
    return measure(model_scorer(model, CPU), windows(shard, objective, batch_size), "test")


@pytest.mark.parametrize(("architecture", "objective"), [*TESTED, *SCALED])
def test_the_batch_size_changes_nothing(architecture: str, objective: str, tmp_path: Path) -> None:
    model, shard = network(architecture, objective), random_shard(tmp_path, 24 * 20 + 11)
    found = [likelihood(model, shard, objective, batch_size) for batch_size in (1, 3, 7, 64)]
    assert len({each.tokens for each in found}) == 1
    assert found[0].tokens > 100
    for each in found[1:]:
        assert each.loss == pytest.approx(found[0].loss, abs=1e-5)
        assert each.perplexity == pytest.approx(found[0].perplexity, rel=1e-5)
        assert each.correct == found[0].correct
        assert [place for place, _ in each.by_position] == [place for place, _ in found[0].by_position]
        np.testing.assert_allclose([loss for _, loss in each.by_position], [loss for _, loss in found[0].by_position], atol=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), TESTED)
def test_the_loss_is_what_plain_transformers_says(architecture: str, objective: str, tmp_path: Path) -> None:
    """A model saved, loaded by transformers alone, its full logits, one window at a time."""
    model, shard = network(architecture, objective), random_shard(tmp_path / "tokens", 24 * 20 + 11)
    model.save_pretrained(tmp_path / "model")
    plain = (AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM).from_pretrained(tmp_path / "model")
    nats, correct, tokens = 0.0, 0, 0
    with torch.no_grad():
        for batch in windows(shard, objective, batch_size=1):
            logits = plain(input_ids=batch.inputs).logits[batch.scored]
            nats += F.cross_entropy(logits.double(), batch.labels[batch.scored], reduction="sum").item()
            correct += int((logits.argmax(-1) == batch.labels[batch.scored]).sum())
            tokens += int(batch.scored.sum())
    found = likelihood(model, shard, objective)
    assert found.tokens == tokens
    assert found.loss == pytest.approx(nats / tokens, abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert found.accuracy == correct / tokens
    assert found.bits_per_byte(1234) == pytest.approx(nats / math.log(2) / 1234, rel=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), TESTED)
def test_any_function_that_gives_logits_is_scored_alike(architecture: str, objective: str, tmp_path: Path) -> None:
    model, shard = network(architecture, objective), random_shard(tmp_path, 300)

    def logits(tokens: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(input_ids=torch.from_numpy(tokens)).logits.numpy()

    found = measure(logits_scorer(logits), windows(shard, objective), "test")
    expected = likelihood(model, shard, objective)
    assert (found.tokens, found.correct) == (expected.tokens, expected.correct)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)


def test_a_split_shorter_than_a_window_is_scored_whole(tmp_path: Path) -> None:
    model, shard = network(), random_shard(tmp_path, 5)
    inputs = torch.from_numpy(shard.read(0, 5))
    expected = F.cross_entropy(model(input_ids=inputs[None, :-1]).logits[0], inputs[1:])
    found = likelihood(model, shard, "causal", 7)
    assert (found.tokens, found.windows) == (4, 1)
    assert found.loss == pytest.approx(expected.item(), abs=1e-5)


def test_context_helps_where_it_should(tmp_path: Path) -> None:
    """Loss by position: a scorer whose loss is the position itself comes back as the mean position of each bucket."""

    def score(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(1.0, inputs.shape[1] + 1).expand(inputs.shape)
        return places.masked_fill(labels < 0, 0.0), torch.zeros_like(labels, dtype=torch.bool)

    shard = random_shard(tmp_path, 10_000)
    curve = measure(score, sliding(shard, sequence_length=256, stride=128, batch_size=9), "test").by_position
    starts = [place for place, _ in curve]
    assert starts[:4] == [1, 2, 3, 4] and 15 <= len(curve) <= 24
    for (start, loss), stop in zip(curve, [*starts[1:], 257], strict=True):
        assert loss == pytest.approx((start + stop - 1) / 2, abs=0.5)  # the last window, moved back, counts some positions once more


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("architecture", "objective"), TESTED)
def test_a_damaged_weight_is_an_error_never_a_number(architecture: str, objective: str, value: float, tmp_path: Path) -> None:
    model, shard = network(architecture, objective), random_shard(tmp_path, 300)
    with torch.no_grad():
        model.get_input_embeddings().weight[int(shard.read(200, 201)[0])] = value
    with pytest.raises(ValueError, match=r"loss on the test split is (nan|inf) \(window \d+, position \d+\)"):
        likelihood(model, shard, objective)


def test_a_loss_too_large_for_exp_is_infinite_not_a_crash() -> None:
    huge = Likelihood(nats=1e6, tokens=10, correct=0, windows=1, read=10, seconds=1.0, by_position=[])
    assert huge.perplexity == math.inf


def test_nothing_hidden_is_said_in_plain_words(tmp_path: Path) -> None:
    """So few positions that the draw hides none of them, or none at all."""
    model, shard = network("bert", "masked"), random_shard(tmp_path, 5)
    with pytest.raises(ValueError, match=r"test split has no token to predict.*masked_share"):
        measure(model_scorer(model, CPU), [], "test")
    blocks = Blocks(shard, sequence_length=LENGTH, objective="masked", seed=7, mask_token=2, vocab_size=VOCAB, masked_share=1e-9, partial=True)
    found = list(hidden(blocks, 1))
    if not any(batch.scored.any() for batch in found):
        with pytest.raises(ValueError, match="no token to predict"):
            measure(model_scorer(model, CPU), found, "test")


def test_progress_is_told_in_tokens(tmp_path: Path) -> None:
    heard: list[tuple[int, float]] = []
    shard = random_shard(tmp_path, 300)
    found = measure(model_scorer(network(), CPU), windows(shard, "causal", 4), "test", lambda tokens, loss: heard.append((tokens, loss)))
    assert [tokens for tokens, _ in heard] == sorted(tokens for tokens, _ in heard) and len(heard) > 3
    assert heard[-1] == (299, pytest.approx(found.loss))
    assert found.read == 24 * found.windows > found.tokens
    assert found.tokens_per_second == found.read / found.seconds


def test_the_tiny_model_is_shorter_than_its_windows() -> None:
    assert tiny().sequence_length == LENGTH
