"""From a split's documents to its file of token ids: all cores, bounded memory, end-of-text behind every document."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stages.data.pieces import Piece, batches, can_be_cut, pieces
from stages.data.spool import Spool

BATCH_BYTES = 1 << 20
IN_FLIGHT = 3  # two keep the tokenizer's threads busy while the third is being turned into ids

Ids = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]
Item = TypeVar("Item")
Result = TypeVar("Result")


def encode(tokenizer: Any, spool: Spool, path: Path, *, dtype: str, end_of_text: int, on_progress: Callable[[int], None]) -> int:
    """Write the ids of all documents of `spool` to `path`, each followed by `end_of_text`; returns their number.

    `on_progress` gets the bytes encoded so far. No padding, no truncation, nothing added but `end_of_text`.
    """
    tokens, done = 0, 0
    found = batches(pieces(spool, cut=can_be_cut(tokenizer)), BATCH_BYTES)
    with path.open("wb") as file:
        for ids, size in _ahead(lambda batch: _encode_batch(tokenizer, batch, dtype, end_of_text), found):
            file.write(ids.data)
            tokens += len(ids)
            done += size
            on_progress(done)
        file.flush()
        os.fsync(file.fileno())
    return tokens


def _encode_batch(tokenizer: Any, batch: list[Piece], dtype: str, end_of_text: int) -> tuple[Ids, int]:
    """The ids of a batch and its size in bytes. The tokenizer's own threads share the pieces out and let this interpreter go on."""
    ids: list[int] = []
    encodings = tokenizer.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)
    for piece, encoding in zip(batch, encodings, strict=True):
        ids.extend(encoding.ids)
        if piece.last:
            ids.append(end_of_text)
    little_endian = np.dtype(dtype).newbyteorder("<")
    return np.fromiter(ids, little_endian, len(ids)), sum(piece.size for piece in batch)


def _ahead(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """map() in threads, in order, never more than IN_FLIGHT items at a time."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        for item in items:
            if len(waiting) == IN_FLIGHT:
                yield waiting.popleft().result()
            waiting.append(threads.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
