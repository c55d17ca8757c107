"""What a split costs under a model: loss, perplexity, bits per byte, accuracy and loss by position, whatever the batch size."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.evaluation.scoring import Scorer
from stages.evaluation.windows import Windows

POINTS = 24  # of the loss by position, spread evenly over the logarithm of the position


@dataclass(frozen=True)
class Likelihood:
    """A model's cost of a split. Losses are nats per predicted token."""

    nats: float  # of all scored tokens together
    tokens: int  # scored
    correct: int  # scored tokens that were the model's first choice
    windows: int
    read: int  # tokens that went through the model: more than were scored where windows overlap or only hidden tokens count
    seconds: float
    by_position: list[tuple[int, float]]  # (tokens before the predicted one, loss), averaged up to the next position listed

    @property
    def loss(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that exceeds a float."""
        return math.exp(self.loss) if self.loss < math.log(1e308) else math.inf

    @property
    def accuracy(self) -> float:
        """Share of scored tokens that were the model's first choice."""
        return self.correct / self.tokens

    @property
    def tokens_per_second(self) -> float:
        """Tokens that went through the model each second."""
        return self.read / self.seconds

    def bits_per_byte(self, text_bytes: int) -> float:
        """Cost of the scored tokens, of which `text_bytes` is the UTF-8 text: comparable between tokenizers and with compressors."""
        return self.nats / math.log(2) / text_bytes


def measure(score: Scorer, windows: Iterable[Windows], split: str, on_progress: Callable[[int, float], None] = lambda tokens, loss: None) -> Likelihood:
    """Score all `windows` of `split`; `on_progress` hears the tokens scored and the mean loss so far.

    Sums are float64, so the result does not depend on how the windows were batched. ValueError when a loss is not finite or nothing was predicted.
    """
    began = time.perf_counter()
    total = _Total(split)
    for batch in windows:
        losses, hits = score(batch.inputs, batch.labels)
        total.add(losses.double().numpy(), hits.numpy(), batch)
        on_progress(total.tokens, total.nats / max(1, total.tokens))
    if total.tokens == 0:
        raise ValueError(f"the {split} split has no token to predict; hold out more in data.{split}, or raise model.masked_share")
    curve = _curve(total.position_nats, total.position_tokens)
    return Likelihood(total.nats, total.tokens, total.correct, total.windows, total.read, time.perf_counter() - began, curve)


class _Total:
    """Running float64 sums."""

    def __init__(self, split: str) -> None:
        self.split = split
        self.nats, self.tokens, self.correct, self.windows, self.read = 0.0, 0, 0, 0, 0
        self.position_nats, self.position_tokens = np.zeros(0), np.zeros(0)

    def add(self, losses: NDArray[np.float64], hits: NDArray[np.bool_], batch: Windows) -> None:
        """Take in one batch: `losses` and `hits` (windows, sequence)."""
        scored, labelled = batch.scored.numpy(), batch.labels.numpy() >= 0
        if not np.isfinite(losses[labelled]).all():
            self._refuse(losses, labelled)
        self.nats += float(losses[scored].sum())
        self.tokens += int(scored.sum())
        self.correct += int(hits[scored].sum())
        self.windows += len(losses)
        self.read += losses.size
        if losses.shape[1] > len(self.position_nats):
            grown = losses.shape[1] - len(self.position_nats)
            self.position_nats, self.position_tokens = np.pad(self.position_nats, (0, grown)), np.pad(self.position_tokens, (0, grown))
        self.position_nats[: losses.shape[1]] += np.where(labelled, losses, 0).sum(0)
        self.position_tokens[: losses.shape[1]] += labelled.sum(0)

    def _refuse(self, losses: NDArray[np.float64], labelled: NDArray[np.bool_]) -> None:
        window, position = np.argwhere(labelled & ~np.isfinite(losses))[0]
        value = losses[window, position]
        place = f"window {self.windows + window}, position {position}"
        raise ValueError(f"the loss on the {self.split} split is {value} ({place}); the model's weights are damaged or it diverged: train it again")


def _curve(nats: NDArray[np.float64], tokens: NDArray[np.float64]) -> list[tuple[int, float]]:
    """(position counted from 1, mean loss from there to the next) for a few positions that grow like a geometric series."""
    edges = np.unique(np.geomspace(1, len(nats) + 1, POINTS + 1).round().astype(int))
    buckets = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    sums = [(start, nats[start - 1 : stop - 1].sum(), tokens[start - 1 : stop - 1].sum()) for start, stop in buckets]
    return [(start, float(cost / count)) for start, cost, count in sums if count]
