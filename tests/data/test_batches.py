"""Batches: every block once an epoch, labels aligned, content independent of workers, batch size and global state."""

import itertools
import multiprocessing
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.data.batches import IGNORED, Batch, Blocks, ordered, spread, stream
from stages.data.tokenizer import train
from tests.data.made import shard

LOADER = {"prefetch": 2, "pin_memory": False}


def blocks(folder, count=333, objective="causal", length=16, **more) -> Blocks:
    masked_share = more.pop("masked_share", 0.15)
    return Blocks(
        shard(folder, count),
        sequence_length=length,
        objective=objective,
        seed=more.pop("seed", 5),
        mask_token=2,
        vocab_size=97,
        masked_share=masked_share,
        **more,
    )


def rows(batch: Batch):
    return [tuple(row) for row in torch.cat([batch.inputs, batch.labels], 1).tolist()]


def test_causal_labels_are_the_next_tokens_and_blocks_overlap_by_one(tmp_path):
    causal = blocks(tmp_path, 1 + 3 * 16)
    assert len(causal) == 3
    batch = causal.batch(0, 0, 3)
    assert batch.inputs.dtype == batch.labels.dtype == torch.int64
    assert batch.inputs.shape == batch.labels.shape == (3, 16)
    assert (batch.attention_mask, batch.epoch, batch.start, batch.predicted, batch.tokens) == (None, 0, 0, 48, 48)
    text = causal.shard.read(0, 49)
    expected = {(tuple(text[i : i + 16]), tuple(text[i + 1 : i + 17])) for i in (0, 16, 32)}
    assert {(tuple(a.tolist()), tuple(b.tolist())) for a, b in zip(batch.inputs, batch.labels, strict=True)} == expected


def test_masked_labels_hold_the_hidden_tokens_only(tmp_path):
    masked = blocks(tmp_path, 320, "masked")
    assert len(masked) == 20
    batch = masked.batch(0, 0, 20)
    chosen = batch.labels != IGNORED
    assert batch.predicted == int(chosen.sum()) and batch.tokens == 320
    assert (chosen.sum(1) >= 1).all()
    originals = {tuple(masked.shard.read(i, i + 16)) for i in range(0, 320, 16)}
    restored = torch.where(chosen, batch.labels, batch.inputs)
    assert {tuple(row) for row in restored.tolist()} == originals


@pytest.mark.parametrize(("tokens", "expected"), [(1025, 1), (1026, 1), (2048, 1), (2049, 2)])
def test_number_of_blocks_at_the_edges(tokens, expected, tmp_path):
    assert len(blocks(tmp_path, tokens, length=1024)) == expected


@pytest.mark.parametrize("tokens", [0, 3, 5, 1023, 1024])
def test_a_split_shorter_than_a_block_is_refused_with_numbers_and_a_way_out(tokens, tmp_path):
    with pytest.raises(ValueError, match=rf"train split holds {tokens} tokens.*model.sequence_length 1024.*at least 1025.*data.source") as error:
        blocks(tmp_path, tokens, length=1024)
    assert ("at most 1022," in str(error.value)) == (tokens == 1023)


def test_exactly_one_masked_block_needs_no_further_token(tmp_path):
    assert len(blocks(tmp_path, 1024, "masked", 1024)) == 1
    with pytest.raises(ValueError, match="at least 1024"):
        blocks(tmp_path, 1023, "masked", 1024)


def test_masked_without_a_mask_token_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no mask token.*tokenizer.source=train"):
        Blocks(shard(tmp_path, 100), sequence_length=16, objective="masked", seed=0, mask_token=None, vocab_size=97, masked_share=0.15)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_each_sequence_comes_once_an_epoch_whatever_the_batch_size(objective, tmp_path):
    data = blocks(tmp_path, objective=objective)
    one_by_one = [row for i in range(len(data)) for row in rows(data.batch(1, i, i + 1))]
    for size in (2, 3, 7, 64):
        taken = itertools.takewhile(lambda batch: batch.epoch == 1, stream(data, size, workers=0, start_epoch=1, **LOADER))
        assert [row for batch in taken for row in rows(batch)] == one_by_one
    assert len(set(one_by_one)) == len(data) == 20


def test_epochs_differ_and_micro_batches_never_cross_them(tmp_path):
    data = blocks(tmp_path)
    got = list(itertools.islice(stream(data, 8, workers=0, **LOADER), 7))
    assert [(batch.epoch, batch.start, len(batch.inputs)) for batch in got] == [(0, 0, 8), (0, 8, 8), (0, 16, 4), (1, 0, 8), (1, 8, 8), (1, 16, 4), (2, 0, 8)]
    assert rows(got[0]) != rows(got[3])


def test_text_behind_the_last_whole_block_is_reached_in_later_epochs(tmp_path):
    data = blocks(tmp_path, 31)
    assert len(data) == 1
    seen = {token for epoch in range(60) for token in data.batch(epoch, 0, 1).labels[0].tolist()}
    assert data.batch(0, 0, 1).inputs[0, 0] == 3
    assert seen == set(data.shard.read(1, 31).tolist())


def test_starting_in_the_middle_gives_the_rest_of_the_same_sequence(tmp_path):
    data = blocks(tmp_path, objective="masked")
    straight = [row for batch in itertools.islice(stream(data, 4, workers=0, **LOADER), 12) for row in rows(batch)]
    for start in (4, 7, 20):
        rest = stream(data, 4, workers=0, start_sequence=start, **LOADER)
        resumed = [row for batch in itertools.islice(rest, 6) for row in rows(batch)]
        assert straight[start : start + 16] == resumed[:16]


@pytest.fixture(scope="module")
def used_tokenizer():
    """A tokenizer that has used its threads in this process: forking after that has hung other loaders."""
    tokenizer = train(iter([["one two three"] * 100]), 512)
    return tokenizer.encode_batch(["one two three four"] * 1000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("objective", ["causal", "masked"])
@pytest.mark.parametrize(("workers", "context"), [(1, "fork"), (4, "fork"), (2, "spawn")])
def test_workers_change_nothing(workers, context, objective, tmp_path, used_tokenizer):
    data = blocks(tmp_path, objective=objective)
    expected = list(itertools.islice(stream(data, 3, workers=0, **LOADER), 16))
    started = time.monotonic()
    got = list(itertools.islice(stream(data, 3, workers=workers, context=context, **LOADER), 16))
    assert time.monotonic() - started < 60
    assert [rows(batch) for batch in got] == [rows(batch) for batch in expected]
    assert [(b.epoch, b.start, b.predicted, b.tokens) for b in got] == [(b.epoch, b.start, b.predicted, b.tokens) for b in expected]


@pytest.mark.parametrize("workers", [0, 1])
def test_no_global_generator_is_touched(workers, tmp_path):
    data = blocks(tmp_path, objective="masked")
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    list(itertools.islice(stream(data, 3, workers=workers, **LOADER), 9))
    list(ordered(data, 3))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
    expected = rows(data.batch(0, 0, 5))
    torch.manual_seed(2), np.random.seed(2)
    assert rows(data.batch(0, 0, 5)) == expected


def test_the_seed_changes_order_and_masks(tmp_path):
    first, second = (blocks(tmp_path, objective="masked", seed=seed) for seed in (1, 2))
    assert rows(first.batch(0, 0, 20)) != rows(second.batch(0, 0, 20))
    assert sorted(rows(first.batch(0, 0, 20))) != sorted(rows(second.batch(0, 0, 20)))


@pytest.mark.parametrize("batch_size", [1, 3, 7, 64])
def test_ordered_reads_every_token_in_text_order_without_padding(batch_size, tmp_path):
    data = blocks(tmp_path, 333)
    batches = list(ordered(data, batch_size))
    labels = [token for batch in batches for token in batch.labels.flatten().tolist()]
    assert labels == data.shard.read(1, 333).tolist()
    assert sum(batch.predicted for batch in batches) == 332
    assert all(batch.attention_mask is None for batch in batches)


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 332), (1, 1), (15, 15), (16, 16), (100, 100), (10_000, 332)])
def test_ordered_stops_at_max_tokens(max_tokens, expected, tmp_path):
    assert sum(batch.tokens for batch in ordered(blocks(tmp_path, 333), 4, max_tokens)) == expected


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 332), (10_000, 332), (332, 332), (100, 96), (16, 16), (15, 15)])
def test_spread_takes_whole_blocks_within_max_tokens(max_tokens, expected, tmp_path):
    assert sum(batch.tokens for batch in spread(blocks(tmp_path, 333), 4, max_tokens)) == expected


def test_spread_reaches_over_the_whole_split(tmp_path):
    data = blocks(tmp_path, 333)  # 20 blocks of 16
    starts = [row[0] for batch in spread(data, 3, 80) for row in batch.inputs.tolist()]
    assert starts == data.shard.read(0, 320)[::64].tolist()


def test_ordered_masks_are_the_same_each_time_and_for_each_batch_size(tmp_path):
    data = blocks(tmp_path, 333, "masked")
    flat = [
        [(i, label) for batch in ordered(data, size) for i, label in zip(batch.inputs.flatten().tolist(), batch.labels.flatten().tolist(), strict=True)]
        for size in (1, 4, 4, 50)
    ]
    assert flat[0] == flat[1] == flat[2] == flat[3]
    assert len(flat[0]) == 333


def test_partial_lets_a_short_split_be_read_as_one_window(tmp_path):
    short = blocks(tmp_path, 5, partial=True)
    assert len(short) == 0
    (batch,) = ordered(short, 8)
    assert batch.inputs.tolist() == [[3, 4, 5, 6]] and batch.labels.tolist() == [[4, 5, 6, 7]]
    with pytest.raises(ValueError, match="0 sequences"):
        stream(short, 8, workers=0, **LOADER)
    with pytest.raises(ValueError, match=r"holds 1 tokens.*at least 2"):
        blocks(tmp_path, 1, partial=True)


def test_to_moves_every_tensor_and_keeps_the_rest(tmp_path):
    batch = blocks(tmp_path).batch(0, 0, 2)
    moved = batch.to("meta")
    assert moved.inputs.is_meta and moved.labels.is_meta and moved.attention_mask is None
    assert (moved.epoch, moved.start, moved.predicted, moved.tokens) == (0, 0, 32, 32)


def _proportional_bytes(process: int) -> int:
    """Memory that `process` uses, what it shares with others divided among them."""
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    return 1024 * int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1])


def test_workers_keep_their_memory_over_an_epoch(tmp_path):
    tokens = shard(tmp_path, 100)
    with tokens.path.open("r+b") as file:
        file.truncate(2 * 8_000_000)
    tokens.tokens = 8_000_000
    data = Blocks(tokens, sequence_length=1000, objective="masked", seed=0, mask_token=2, vocab_size=97, masked_share=0.15)
    batches = stream(data, 8, workers=2, **LOADER)
    workers = [process.pid for process in multiprocessing.active_children()]
    assert len(workers) == 2
    sizes = []
    for index in range(1000):  # one epoch
        batch = next(batches)
        if index in (100, 999):
            sizes.append(sum(map(_proportional_bytes, workers)))
    assert batch.epoch == 0 and batch.start == 7_992
    assert sizes[1] - sizes[0] < 20_000_000
