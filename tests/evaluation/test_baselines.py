"""Baselines are what the compressors and the counting formula really give, however the text is read."""

import bz2
import lzma
import math
import zlib
from pathlib import Path

import numpy as np
import pytest

from stages.evaluation import baselines
from stages.evaluation.baselines import adaptive_nats, compressors, token_unigram
from tests.evaluation.made import TEXT, random_shard


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_streaming_gives_the_size_of_the_whole(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "CHUNK", chunk)
    text = (TEXT * 50).encode()
    (tmp_path / "text").write_bytes(text)
    found = compressors(tmp_path / "text")
    bits = 8 / len(text)
    assert found["zlib"] == pytest.approx(bits * len(zlib.compress(text, 9)), rel=0.02)
    assert found["bz2"] == pytest.approx(bits * len(bz2.compress(text, 9)))
    assert found["xz"] == pytest.approx(bits * len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)))
    assert found["zlib"] < found["unigram"] < 8


def test_the_closed_form_is_the_adaptive_code() -> None:
    """Symbol by symbol, each predicted from the counts so far plus a half."""
    for symbols, sequence in [(2, [0, 1, 1, 1]), (256, list(TEXT.encode())), (5, [3] * 40)]:
        counts, nats = np.zeros(symbols), 0.0
        for symbol in sequence:
            nats -= math.log((counts[symbol] + 0.5) / (counts.sum() + symbols / 2))
            counts[symbol] += 1
        assert adaptive_nats(counts.astype(int)) == pytest.approx(nats)


def test_token_counts_alone_cannot_tell_random_tokens_apart(tmp_path: Path) -> None:
    found = token_unigram(random_shard(tmp_path, 20_000), 97)
    assert math.log(94) < found < math.log(97) + 0.02


def test_an_empty_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"test\.txt is empty.*data\.test"):
        compressors(tmp_path / "test.txt")
