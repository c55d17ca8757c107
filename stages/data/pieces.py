"""Long documents in pieces that encode to exactly the same ids, so that memory and cores are shared evenly however unequal documents are."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from stages.data.spool import Spool

PIECE_BYTES = 1 << 16
TAIL_BYTES = 1 << 10
PIECE_OVERHEAD = 64  # bytes counted for each piece beside its text, so that very short ones do not pile up

# Between a character that is no white space and white space, no token of GPT-2's pattern (nor a word of BERT's) goes on: those patterns take
# white space only at their start. Likewise between a CJK ideograph and CJK punctuation. What ends such a place, in UTF-8:
_NO_SPACE = (
    rb"[!-~]|[\xc3-\xdf][\x80-\xbf]|\xe0[\x80-\xbf]{2}"  # ASCII; from U+00C0; from U+0800
    rb"|\xe2\x80[\x98-\x9f]|\xe3\x80[\x81-\xbf]|\xe3[\x81-\x83][\x80-\xbf]"  # quotes; CJK punctuation, kana (U+1680, U+2000, U+3000 are white space)
    rb"|[\xe4-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"  # from U+4000; from U+10000
)
_CUT = re.compile(rb"(?:" + _NO_SPACE + rb")(?=[ \t\r\n])|[\xe5-\xe8][\x80-\xbf]{2}(?=\xe3\x80\x82|\xef\xbc\x8c)")


class Piece(NamedTuple):
    """A part of a document of `size` bytes; `last`: the document ends with it."""

    text: str
    size: int
    last: bool


def can_be_cut(tokenizer: Any) -> bool:
    """Whether `tokenizer` works word by word, so that `pieces` may cut: GPT-2's byte-level pipeline and BERT's do; others get whole documents."""
    pipeline = json.loads(tokenizer.to_str())
    words, normalizer = pipeline["pre_tokenizer"] or {}, pipeline["normalizer"] or {}
    only_special = all(token["special"] for token in pipeline["added_tokens"])
    byte_level = words.get("type") == "ByteLevel" and words.get("use_regex", True) and not words["add_prefix_space"] and not normalizer
    bert = words.get("type") == "BertPreTokenizer" and normalizer.get("type") in (None, "BertNormalizer")
    deterministic = not pipeline["model"].get("dropout")
    return only_special and deterministic and (byte_level or bert)


def pieces(spool: Spool, *, cut: bool, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """All documents of `spool`, those above `piece_bytes` cut where that changes nothing (`cut`), else whole."""
    with spool.text_file.open("rb") as file:
        for length in spool.lengths():
            if length <= piece_bytes or not cut:
                yield Piece(file.read(length).decode("utf-8"), length, last=True)
            else:
                yield from _parts(file, length, piece_bytes)


def _parts(file: BinaryIO, length: int, piece_bytes: int) -> Iterator[Piece]:
    """One document of `length` bytes, from where `file` stands."""
    kept, searched = bytearray(), 0
    while length:
        block = file.read(min(piece_bytes, length))
        length -= len(block)
        kept += block
        end = _last_cut(kept, searched) if length else len(kept)
        if end:
            yield Piece(kept[:end].decode("utf-8"), end, last=length == 0)
            del kept[:end]
        searched = max(0, len(kept) - 4)  # a character may go on in the next block


def _last_cut(text: bytearray, start: int) -> int:
    """The last place behind `start` where `text` may be cut, 0 for none; its end is tried first, which nearly always does."""
    for begin in (max(start, len(text) - TAIL_BYTES), start):
        end = max((match.end() for match in _CUT.finditer(text, begin)), default=0)
        if end:
            return end
    return 0


def batches(found: Iterable[Piece], batch_bytes: int) -> Iterator[list[Piece]]:
    """Pieces in lists of about `batch_bytes`."""
    waiting: list[Piece] = []
    size = 0
    for piece in found:
        waiting.append(piece)
        size += piece.size + PIECE_OVERHEAD
        if size >= batch_bytes:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting
