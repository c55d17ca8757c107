"""The bytes behind tokens are exact for byte-level tokenizers, for any part of a split, even where a cut goes through a character."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from stages.data.shards import Shard
from stages.evaluation.text_bytes import scored_bytes, token_lengths
from tests.evaluation.made import TEXT, text_split

DOCUMENTS = [TEXT, TEXT[::-1], "plain\r\n\ttext", " ", TEXT * 3]


@pytest.fixture
def split(tmp_path: Path) -> tuple[Shard, Tokenizer]:
    return text_split(tmp_path, DOCUMENTS)


def test_all_tokens_together_are_the_text(split: tuple[Shard, Tokenizer]) -> None:
    shard, tokenizer = split
    lengths = token_lengths(tokenizer)
    assert lengths is not None
    ids = shard.read(0, shard.tokens)
    assert lengths[ids].sum() == shard.bytes == len("".join(DOCUMENTS).encode())
    assert not lengths[[0, 1, 2]].any()
    assert scored_bytes(shard, lengths) == shard.bytes - lengths[ids[0]]


def test_any_part_is_the_bytes_of_its_tokens(split: tuple[Shard, Tokenizer]) -> None:
    """Against the bytes that the vocabulary spells: cuts inside the emoji and the ideographs included."""
    shard, tokenizer = split
    alphabet = {character: byte for byte, character in _byte_alphabet().items()}
    spelled = [
        b"" if index in (0, 1, 2) else bytes(alphabet[character] for character in tokenizer.id_to_token(index))
        for index in shard.read(0, shard.tokens).tolist()
    ]
    assert b"".join(spelled) == "".join(DOCUMENTS).encode()
    cut_inside = 0
    for tokens in range(2, shard.tokens + 1):
        part = b"".join(spelled[1:tokens])
        assert scored_bytes(shard, token_lengths(tokenizer), tokens) == len(part)
        try:
            part.decode()
        except UnicodeDecodeError:
            cut_inside += 1
    assert cut_inside > 5


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's map from bytes to characters (bytes_to_unicode in its encoder.py)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def test_a_tokenizer_that_changes_the_text_counts_the_whole_split_only(split: tuple[Shard, Tokenizer]) -> None:
    shard, _ = split
    lossy = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    lossy.normalizer, lossy.pre_tokenizer, lossy.decoder = normalizers.Lowercase(), pre_tokenizers.Whitespace(), decoders.WordPiece()
    assert token_lengths(lossy) is None
    assert scored_bytes(shard, None) == shard.bytes
    assert scored_bytes(shard, None, shard.tokens - 1) is None


def test_lengths_that_do_not_add_up_are_not_believed(split: tuple[Shard, Tokenizer]) -> None:
    shard, tokenizer = split
    lengths = token_lengths(tokenizer)
    assert lengths is not None
    wrong = lengths + np.int64(1)
    assert scored_bytes(shard, wrong) == shard.bytes
    assert scored_bytes(shard, wrong, 10) is None


def test_gpt2s_own_tokenizer_counts_its_bytes() -> None:
    from stages.data import tokenizer as tokenizers

    made = tokenizers.train(iter([DOCUMENTS]), 400)
    again = Tokenizer.from_str(made.to_str())
    lengths = token_lengths(again)
    assert lengths is not None
    for text in DOCUMENTS:
        assert lengths[again.encode(text, add_special_tokens=False).ids].sum() == len(text.encode())


def test_a_vocabulary_with_gaps_has_a_length_for_every_id() -> None:
    gapped = Tokenizer(models.BPE({"a": 0, "b": 7}, []))
    gapped.pre_tokenizer, gapped.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    lengths = token_lengths(gapped)
    assert lengths is not None
    assert lengths.tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
