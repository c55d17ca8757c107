"""Every token but the first is scored exactly once, with the context that the window gives."""

from pathlib import Path

import pytest
import torch

from stages.data.batches import IGNORED, Blocks
from stages.data.shards import open_split
from stages.evaluation.windows import Windows, hidden, sliding
from tests.data.made import token_folder
from tests.evaluation.made import random_shard

CASES = [
    (tokens, length, stride, batch)
    for tokens in (2, 3, 5, 31, 32, 33, 34, 64, 65, 100, 129)
    for length in (2, 7, 32)
    for stride in (None, 1, 2, length)
    for batch in (1, 3, 64)
]


def targets(batches: list[Windows], ids: list[int], starts: dict[bytes, int]) -> list[tuple[int, int]]:
    """(place of each scored token in the split, tokens before it in its window)."""
    found = []
    for batch in batches:
        for inputs, labels, scored in zip(batch.inputs, batch.labels, batch.scored, strict=True):
            start = starts[inputs.numpy().tobytes()]
            assert inputs.tolist() == ids[start : start + len(inputs)]
            for place in range(len(inputs)):
                assert labels[place] in (ids[start + place + 1], IGNORED)
                assert not scored[place] or labels[place] != IGNORED
            found += [(start + place + 1, place + 1) for place in torch.nonzero(scored).flatten().tolist()]
    return found


def test_every_token_but_the_first_is_scored_once(tmp_path: Path) -> None:
    assert len(CASES) == 396
    for tokens in {case[0] for case in CASES}:
        shard = random_shard(tmp_path / str(tokens), tokens, vocab_size=40_000)  # so large that no window comes twice
        ids = shard.read(0, tokens).tolist()
        for _, length, stride, batch in (case for case in CASES if case[0] == tokens):
            window = min(length, tokens - 1)
            starts = {shard.read(start, start + window).tobytes(): start for start in range(tokens - window)}
            batches = list(sliding(shard, sequence_length=length, stride=stride, batch_size=batch))
            found = targets(batches, ids, starts)
            assert [place for place, _ in found] == list(range(1, tokens)), (tokens, length, stride, batch)
            least = length - (stride or max(1, length // 2))
            assert all(before >= min(place, least + 1) for place, before in found)
            assert all(each.inputs.shape[1] == window and len(each.inputs) <= batch for each in batches)


def test_windows_that_do_not_overlap_are_labelled_everywhere(tmp_path: Path) -> None:
    shard = random_shard(tmp_path, 1 + 4 * 8)
    whole = [bool((row != IGNORED).all()) for batch in sliding(shard, sequence_length=8, stride=4, batch_size=3) for row in batch.labels]
    assert whole == [True, False, True, False, True, False, True]


def test_max_tokens_cuts_the_split(tmp_path: Path) -> None:
    shard = random_shard(tmp_path, 100)
    cut = sum(int(batch.scored.sum()) for batch in sliding(shard, sequence_length=8, stride=4, batch_size=3, max_tokens=50))
    assert cut == 49


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_split_without_a_token_to_predict_is_named(tokens: int, tmp_path: Path) -> None:
    shard = open_split(token_folder(tmp_path, [5] * tokens), "test")
    with pytest.raises(ValueError, match=rf"test split holds {tokens} tokens.*data\.test"):
        sliding(shard, sequence_length=8, stride=None, batch_size=1)


def test_a_stride_that_skips_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"evaluate\.stride: 9 .*1 to model\.sequence_length \(8\)"):
        sliding(random_shard(tmp_path, 100), sequence_length=8, stride=9, batch_size=1)


def test_masked_windows_hide_the_same_positions_each_time_and_whatever_the_batch(tmp_path: Path) -> None:
    shard = random_shard(tmp_path, 101)

    def rows(batch_size: int) -> list[list[int]]:
        blocks = Blocks(shard, sequence_length=8, objective="masked", seed=7, mask_token=2, vocab_size=97, masked_share=0.3, partial=True)
        batches = list(hidden(blocks, batch_size))
        assert all(torch.equal(batch.scored, batch.labels != IGNORED) for batch in batches)
        return [row.tolist() for batch in batches for row in torch.cat([batch.inputs, batch.labels], 1)]

    assert rows(1) == rows(3) == rows(64) == rows(64)
    assert sum(len(row) // 2 for row in rows(64)) == 101
