"""Batches as pure functions of (seed, epoch, index): causal or masked blocks of a shard, shuffled by a formula, through a DataLoader or in text order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from stages.data.masking import mask
from stages.data.permutation import keys, permute
from stages.data.shards import Shard

IGNORED = -100
Place = tuple[int, int, int]  # epoch, first sequence, one behind the last


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one epoch; labels are aligned with the hidden states, so for causal models they are already shifted."""

    inputs: torch.Tensor  # (batch, sequence) int64
    labels: torch.Tensor  # (batch, sequence) int64, IGNORED: nothing to predict
    attention_mask: torch.Tensor | None  # (batch, sequence) bool; None: whole blocks without padding
    epoch: int
    start: int  # first sequence of the batch in the epoch's order
    predicted: int  # labels that are not IGNORED
    tokens: int  # input tokens that are no padding

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory; DataLoader calls this."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Any) -> "Batch":
        attention_mask = None if self.attention_mask is None else change(self.attention_mask)
        return replace(self, inputs=change(self.inputs), labels=change(self.labels), attention_mask=attention_mask)


class Blocks(Dataset[Batch]):
    """The sequences of a shard: blocks of `sequence_length` tokens, for causal models with one token more, shared with the next block.

    len() is the number of whole blocks, the same in every epoch. Tokens left over behind the last whole block are reached by shifting the blocks by
    a keyed offset from the second epoch on. `partial` allows a shard shorter than one block; then len() is 0 and only `ordered` can read it.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        sequence_length: int,
        objective: Literal["causal", "masked"],
        seed: int,
        mask_token: int | None = None,
        vocab_size: int,
        masked_share: float,
        partial: bool = False,
    ) -> None:
        self.shard, self.sequence_length, self.objective, self.seed = shard, sequence_length, objective, seed
        self.mask_token, self.vocab_size, self.masked_share = mask_token, vocab_size, masked_share
        self._overlap = 1 if objective == "causal" else 0
        self._blocks = max(0, shard.tokens - self._overlap) // sequence_length
        if objective == "masked" and mask_token is None:
            raise ValueError("model.objective is masked, but the tokenizer has no mask token; use tokenizer.source=train or one of a BERT-class model")
        least = 1 + self._overlap if partial else sequence_length + self._overlap
        if shard.tokens < least:
            raise ValueError(self._too_short(least))

    def _too_short(self, least: int) -> str:
        held = f"the {self.shard.split} split holds {self.shard.tokens} tokens, but model.sequence_length {self.sequence_length} with "
        held += f"model.objective {self.objective} needs at least {least}"
        fitting = self.shard.tokens - self._overlap
        shorter = f"set model.sequence_length to at most {fitting}, or " if fitting >= 2 else ""
        share = "" if self.shard.split == "train" else f" (or hold out more in data.{self.shard.split})"
        return f"{held}; {shorter}give data.source more text{share}"

    def __len__(self) -> int:
        return self._blocks

    def __getitem__(self, place: Place) -> Batch:
        return self.batch(*place)

    def batch(self, epoch: int, start: int, stop: int) -> Batch:
        """Sequences [start, stop) of the epoch's order: a pure function of (seed, epoch, start, stop)."""
        if not 0 <= start < stop <= len(self):
            raise IndexError(f"sequences [{start}, {stop}) are outside the {len(self)} of the {self.shard.split} split")
        order = permute(np.arange(start, stop, dtype=np.uint64), len(self), self.seed, epoch)
        first = self._offset(epoch)
        rows = [self._row(epoch, int(block), first + int(block) * self.sequence_length, self.sequence_length) for block in order]
        return self._collate(rows, epoch, start)

    def _offset(self, epoch: int) -> int:
        spare = self.shard.tokens - self._overlap - self._blocks * self.sequence_length
        return int(keys(self.seed, epoch, 1, count=1)[0] % np.uint64(spare + 1)) if epoch else 0

    def _row(self, epoch: int, sample: int, start: int, length: int) -> tuple[Any, Any]:
        tokens = self.shard.read(start, start + length + self._overlap)
        if self.objective == "causal":
            return tokens[:-1], tokens[1:]
        assert self.mask_token is not None
        return mask(
            tokens,
            seed=self.seed,
            epoch=epoch,
            sample=sample,
            share=self.masked_share,
            mask_token=self.mask_token,
            vocab_size=self.vocab_size,
            ignored=IGNORED,
        )

    def _collate(self, rows: list[tuple[Any, Any]], epoch: int, start: int) -> Batch:
        inputs, labels = (np.stack(column) for column in zip(*rows, strict=True))
        predicted = int((labels != IGNORED).sum())
        return Batch(torch.from_numpy(inputs), torch.from_numpy(labels), None, epoch, start, predicted, inputs.size)

    def windows(self, indices: Sequence[int], length: int) -> Batch:
        """Windows of `length` tokens, one at each block of `indices`, with the masks of epoch 0."""
        rows = [self._row(0, block, block * self.sequence_length, length) for block in indices]
        return self._collate(rows, 0, indices[0])


class _Places(Sampler[Place]):
    """Endless micro-batches as (epoch, start, stop); none crosses an epoch."""

    def __init__(self, sequences: int, batch_size: int, epoch: int, start: int) -> None:
        self.sequences, self.batch_size, self.epoch, self.start = sequences, batch_size, epoch, start

    def __iter__(self) -> Iterator[Place]:
        epoch, start = self.epoch, self.start
        while True:
            if start >= self.sequences:
                epoch, start = epoch + 1, 0
            stop = min(start + self.batch_size, self.sequences)
            yield epoch, start, stop
            start = stop


def _as_it_is(batch: Any) -> Any:
    return batch


def stream(
    blocks: Blocks,
    batch_size: int,
    *,
    workers: int,
    prefetch: int,
    pin_memory: bool,
    start_epoch: int = 0,
    start_sequence: int = 0,
    context: Literal["fork", "spawn", "forkserver"] | None = None,
) -> Iterator[Batch]:
    """Endless micro-batches, shuffled anew in every epoch; the last one of an epoch may be smaller.

    `workers` (0: none; they live as long as the stream, over all epochs), `prefetch` (batches each worker keeps ready), `pin_memory` and `context`
    (how workers start; None: the platform's way) change speed, never content. Draws nothing from torch's global generator.
    """
    if not 0 <= start_sequence <= len(blocks) or not len(blocks):
        raise ValueError(f"sequence {start_sequence} is outside the {len(blocks)} sequences of an epoch of the {blocks.shard.split} split")
    loader = DataLoader(
        blocks,
        batch_size=None,  # the sampler's places are whole batches
        sampler=_Places(len(blocks), batch_size, start_epoch, start_sequence),
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        collate_fn=_as_it_is,
        pin_memory=pin_memory,
        multiprocessing_context=context if workers else None,
        generator=torch.Generator(),  # else DataLoader draws its workers' seed from the global one
    )
    return iter(loader)


def ordered(blocks: Blocks, batch_size: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """Batches in text order with the masks of epoch 0, the same each time.

    Reads at most `max_tokens` input tokens (None: all). A last, shorter window comes as a batch of its own, so nothing is padded and nothing dropped.
    """
    length = blocks.sequence_length
    available = blocks.shard.tokens - blocks._overlap
    tokens = available if max_tokens is None else min(available, max_tokens)
    whole, rest = divmod(tokens, length)
    for index in range(0, whole, batch_size):
        yield blocks.windows(range(index, min(index + batch_size, whole)), length)
    if rest:
        yield blocks.windows([whole], rest)


def spread(blocks: Blocks, batch_size: int, max_tokens: int | None = None) -> Iterator[Batch]:
    """At most `max_tokens` input tokens (None: all) as whole blocks spread evenly over the split, so that a sample speaks for all of it; the same each time.

    What is not larger than one block, and a split that is not cut, is read as by `ordered`.
    """
    whole, wanted = len(blocks), (max_tokens or 0) // blocks.sequence_length
    if not 0 < wanted < whole:
        yield from ordered(blocks, batch_size, max_tokens)
        return
    indices = [index * whole // wanted for index in range(wanted)]
    for start in range(0, wanted, batch_size):
        yield blocks.windows(indices[start : start + batch_size], blocks.sequence_length)
