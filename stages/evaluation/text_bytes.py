"""How many UTF-8 bytes of text the tokens of a split stand for: the denominator of bits per byte."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.data.shards import Shard
from stages.data.tokenizer import vocab_size

CHUNK = 1 << 20  # tokens read at a time

Lengths = NDArray[np.int64]  # (vocabulary,) bytes of text that a token stands for


def token_lengths(tokenizer: Any) -> Lengths | None:
    """Bytes of text behind each id of a byte-level tokenizer (of the tokenizers library): an entry there has one character for each byte.

    Special tokens stand for no text. None for other kinds, which change the text (lower case, spaces), so that lengths cannot be told from entries.
    """
    if '"ByteLevel"' not in json.dumps(json.loads(tokenizer.to_str())["decoder"]):
        return None
    lengths = np.zeros(vocab_size(tokenizer), np.int64)
    for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
        lengths[index] = len(token)
    for index, added in tokenizer.get_added_tokens_decoder().items():
        lengths[index] = 0 if added.special else len(added.content.encode())
    return lengths


def scored_bytes(shard: Shard, lengths: Lengths | None, max_tokens: int | None = None) -> int | None:
    """UTF-8 bytes of the tokens that a causal model predicts: all of the split but the first, or of its first `max_tokens`.

    Exact where `lengths` account for every byte of the split. Otherwise the bytes of the whole split (a few too many: those of the first token),
    and None for a part of it.
    """
    tokens = shard.tokens if max_tokens is None else min(shard.tokens, max_tokens)
    if lengths is not None and _bytes(shard, lengths, 0, shard.tokens) == shard.bytes:
        return _bytes(shard, lengths, 1, tokens)
    return shard.bytes if tokens == shard.tokens else None


def _bytes(shard: Shard, lengths: Lengths, start: int, stop: int) -> int:
    return sum(int(lengths[shard.read(at, min(at + CHUNK, stop))].sum()) for at in range(start, stop, CHUNK))
