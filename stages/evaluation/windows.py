"""Which windows of a split a model reads, and which of its tokens each of them scores: every token once."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stages.data.batches import IGNORED, Blocks, ordered
from stages.data.shards import Meta, Shard
from stages.params import Params


@dataclass(frozen=True)
class Windows:
    """A few windows of one length; all of it on the CPU."""

    inputs: Tensor  # (windows, sequence) int64
    labels: Tensor  # (windows, sequence) int64, aligned with the hidden states; IGNORED: not asked for
    scored: Tensor  # (windows, sequence) bool: labels that count; the others only serve the loss by position


def split_windows(params: Params, meta: Meta, shard: Shard, *, stride: int | None, batch_size: int, max_tokens: int | None = None) -> Iterator[Windows]:
    """The windows of `shard` (at most its first `max_tokens`) for the model of params.yaml: `sliding` ones by `stride` if causal, `hidden` ones if masked."""
    model = params.model
    if model.objective == "causal":
        return sliding(shard, sequence_length=model.sequence_length, stride=stride, batch_size=batch_size, max_tokens=max_tokens)
    blocks = Blocks(
        shard,
        sequence_length=model.sequence_length,
        objective="masked",
        seed=params.seed,
        mask_token=meta.mask_token,
        vocab_size=meta.vocab_size,
        masked_share=model.masked_share,
        partial=True,
    )
    return hidden(blocks, batch_size, max_tokens)


def sliding(shard: Shard, *, sequence_length: int, stride: int | None, batch_size: int, max_tokens: int | None = None) -> Iterator[Windows]:
    """Windows for a causal model: every token of the split but the first is scored once, with all the context that its window gives.

    A window advances by `stride` tokens (None: half of `sequence_length`), so behind the first one each token has at least `sequence_length` - `stride`
    tokens before it. The last window is moved back to end with the split; all have one length, and none is padded. `max_tokens` cuts the split.
    """
    tokens = shard.tokens if max_tokens is None else min(shard.tokens, max_tokens)
    step = max(1, sequence_length // 2) if stride is None else stride
    if step > sequence_length:
        raise ValueError(f"evaluate.stride: {step} would skip tokens; allowed: 1 to model.sequence_length ({sequence_length}), or null for half of it")
    if tokens < 2:
        raise ValueError(_too_short(shard, tokens))
    length = min(sequence_length, tokens - 1)
    return _sliding(shard, length, step, tokens, batch_size)


def _sliding(shard: Shard, length: int, step: int, tokens: int, batch_size: int) -> Iterator[Windows]:
    last = tokens - 1 - length
    count = -(-last // step) + 1
    apart = -(-length // step)  # every so many windows, one that does not overlap the one before: labelled everywhere, for the loss by position
    for first in range(0, count, batch_size):
        indices = np.arange(first, min(first + batch_size, count))
        starts = np.minimum(indices * step, last)
        behind = np.where(indices == 0, 0, (indices - 1) * step + length)  # first target not scored before
        rows = np.stack([shard.read(start, start + length + 1) for start in starts.tolist()])  # (windows, sequence + 1)
        scored = starts[:, None] + np.arange(length) >= behind[:, None]
        whole = indices % apart == 0
        labels = np.where(scored | whole[:, None], rows[:, 1:], IGNORED)
        yield Windows(torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(labels), torch.from_numpy(scored))


def hidden(blocks: Blocks, batch_size: int, max_tokens: int | None = None) -> Iterator[Windows]:
    """Windows for a masked model: the whole split in text order, with the same positions hidden each time; these are scored."""
    for batch in ordered(blocks, batch_size, max_tokens):
        yield Windows(batch.inputs, batch.labels, batch.labels != IGNORED)


def _too_short(shard: Shard, tokens: int) -> str:
    cut = "" if tokens == shard.tokens else f", cut to {tokens} by max_tokens"
    return f"the {shard.split} split holds {shard.tokens} tokens{cut}; at least 2 are needed to predict one from another: hold out more in data.{shard.split}"
