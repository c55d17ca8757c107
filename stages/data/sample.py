"""The text that a tokenizer is trained on: the whole train split, or an even sample of it where that would need too much memory."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from stages.data.pieces import PIECE_BYTES, Piece, batches, pieces
from stages.data.spool import Spool

MAX_BYTES = 64 << 20  # more text costs minutes and changes a vocabulary hardly at all
# BPE training holds every distinct word, at about 130 bytes of memory for each of its bytes: this many stay below 300 MB.
MAX_DISTINCT_BYTES = 2 << 20
MAX_STRINGS = 300_000
_WORD = re.compile(r"[^\W\d_]+|\d+|(?:[^\w\s]|_)+")


def training_texts(spool: Spool) -> tuple[Iterator[list[Piece]], int]:
    """Text of `spool` to train a tokenizer on, and every how many batches of it one is taken (1: all of it). The same for the same documents."""
    step = max(1, -(-spool.bytes // MAX_BYTES))
    while not _fits(_every(spool, step)):
        step *= 2
    return _every(spool, step), step


def _every(spool: Spool, step: int) -> Iterator[list[Piece]]:
    return islice(batches(pieces(spool, cut=True), PIECE_BYTES), 0, None, step)


def _fits(texts: Iterable[list[Piece]]) -> bool:
    """Whether the distinct words of `texts` stay within MAX_DISTINCT_BYTES; stops counting, and growing, as soon as they do not."""
    words: set[str] = set()
    strings: set[str] = set()  # what white space separates: most have been seen before, and need not be taken apart again
    size = 0
    for batch in texts:
        new_strings = set().union(*(piece.text.split() for piece in batch)) - strings
        new_words = {word for string in new_strings for word in _WORD.findall(string)} - words
        size += sum(len(word.encode("utf-8")) for word in new_words)
        if size > MAX_DISTINCT_BYTES:
            return False
        words |= new_words
        if len(strings) > MAX_STRINGS:
            strings.clear()
        strings |= new_strings
    return True
