"""Token files: what is read is what was written, from any process, and damage is refused with words."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest

from stages.data.shards import Shard, open_split, read_meta, token_dtype, token_file
from tests.data.made import shard, token_folder


@pytest.mark.parametrize(("vocab_size", "dtype"), [(512, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_the_smallest_type_that_holds_every_id(vocab_size, dtype, tmp_path):
    assert token_dtype(vocab_size) == dtype
    ids = np.array([0, 1, vocab_size - 1])
    token_folder(tmp_path, ids, vocab_size)
    assert open_split(tmp_path, "test").read(0, 3).tolist() == ids.tolist()
    assert token_file(tmp_path, "test").stat().st_size == 3 * np.dtype(dtype).itemsize


def test_read_gives_int64_of_the_asked_range_and_refuses_what_lies_outside(tmp_path):
    tokens = shard(tmp_path, 50)
    assert (tokens.tokens, tokens.documents, tokens.bytes, tokens.split) == (50, 1, 200, "train")
    assert tokens.read(7, 10).dtype == np.int64
    assert tokens.read(7, 10).tolist() == [10, 11, 12]
    assert tokens.read(50, 50).tolist() == []
    for start, stop in [(-1, 3), (0, 51), (5, 4)]:
        with pytest.raises(IndexError, match="50 tokens"):
            tokens.read(start, stop)


def _read_in_process(tokens: Shard, queue) -> None:
    queue.put(tokens.read(3, 6).tolist())


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_shard_reads_in_other_processes(context, tmp_path):
    tokens = shard(tmp_path, 50)
    tokens.read(0, 1)  # the file is open here
    processes = multiprocessing.get_context(context)
    queue = processes.Queue()
    process = processes.Process(target=_read_in_process, args=(tokens, queue))
    process.start()
    assert queue.get(timeout=60) == [6, 7, 8]
    process.join()


def test_a_pickled_shard_opens_its_own_file(tmp_path):
    tokens = shard(tmp_path, 50)
    tokens.read(0, 1)
    copy = pickle.loads(pickle.dumps(tokens))  # noqa: S301 - as DataLoader does it
    tokens.close()
    assert copy.read(0, 2).tolist() == [3, 4]
    assert tokens.read(0, 2).tolist() == [3, 4]


def test_missing_or_damaged_meta_is_refused_with_the_next_move(tmp_path):
    with pytest.raises(ValueError, match=r"meta\.json is missing.*dvc repro tokenize"):
        read_meta(tmp_path / "none")
    token_folder(tmp_path, [1, 2, 3])
    path = tmp_path / "meta.json"
    good = path.read_text()
    damages = [
        b"",
        b"{",
        b"\xff",
        good.replace("uint16", "float").encode(),
        good.replace('"vocab_size"', '"vocab"').encode(),
        good.replace('"test"', '"tset"').encode(),
    ]
    for damage in damages:
        path.write_bytes(damage)
        with pytest.raises(ValueError, match=r"meta\.json is damaged.*dvc repro -f -s tokenize"):
            read_meta(tmp_path)
    assert len(damages) == 6
    path.write_text(good)
    assert read_meta(tmp_path).vocab_size == 97


def test_a_token_file_of_another_size_than_meta_says_is_refused(tmp_path):
    token_folder(tmp_path, [1, 2, 3])
    path = token_file(tmp_path, "train")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"holds 5 bytes, meta\.json says 6"):
        open_split(tmp_path, "train")
    path.unlink()
    with pytest.raises(ValueError, match=r"train\.bin is missing"):
        open_split(tmp_path, "train")


def test_a_file_that_shrinks_while_read_is_an_error_not_a_short_answer(tmp_path):
    tokens = shard(tmp_path, 50)
    path = token_file(tmp_path, "train")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match="became shorter"):
        tokens.read(5, 30)


def test_reading_a_large_file_keeps_the_resident_size_flat(tmp_path):
    count = 100_000_000
    token_folder(tmp_path, [1, 2, 3])
    with token_file(tmp_path, "train").open("wb") as file:
        file.truncate(2 * count)
    meta = read_meta(tmp_path).splits["train"].model_copy(update={"tokens": count})
    tokens = Shard(token_file(tmp_path, "train"), "train", "uint16", meta)
    before = _resident()
    for start in range(0, count, 1_000_000):
        assert tokens.read(start, start + 1000).max() == 0
        tokens.read(start, start + 1_000_000)
    assert _resident() - before < 30_000_000


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
