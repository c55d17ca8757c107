"""A split's documents on disk between reading and encoding: text end to end, with the length and fingerprint of each document beside it."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

FLUSH_DOCUMENTS = 1 << 16
CHUNK = 1 << 16


class Spool:
    """Written once (`with spool: spool.add(...)`), then read as often as needed; memory does not grow with it."""

    def __init__(self, text_file: Path) -> None:
        self.text_file = text_file
        self.documents, self.bytes = 0, 0
        self._lengths, self._fingerprints = array("Q"), array("Q")

    def __enter__(self) -> Self:
        self._files = [path.open("wb") for path in (self.text_file, self._beside("lengths"), self._beside("fingerprints"))]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self._flush()
        for file in self._files:
            file.close()

    def _beside(self, what: str) -> Path:
        return self.text_file.with_suffix(f".{what}")

    def add(self, document: bytes, fingerprint: int) -> None:
        """Append one document."""
        self._files[0].write(document)
        self._lengths.append(len(document))
        self._fingerprints.append(fingerprint)
        self.documents += 1
        self.bytes += len(document)
        if len(self._lengths) >= FLUSH_DOCUMENTS:
            self._flush()

    def _flush(self) -> None:
        for waiting, file in ((self._lengths, self._files[1]), (self._fingerprints, self._files[2])):
            file.write(waiting.tobytes())
            del waiting[:]

    def lengths(self) -> Iterator[int]:
        """Bytes of each document, in order."""
        for chunk in _chunks(self._beside("lengths")):
            yield from chunk.tolist()

    def fingerprints(self) -> Iterator[Any]:
        """Fingerprints as arrays (at most CHUNK,) uint64, in order."""
        return _chunks(self._beside("fingerprints"))

    def keep_only_text(self) -> None:
        """Remove what lies beside the text."""
        self._beside("lengths").unlink()
        self._beside("fingerprints").unlink()


def _chunks(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        while block := file.read(8 * CHUNK):
            yield np.frombuffer(block, np.uint64)


def count_shared(held_out: Spool, other: Spool) -> int:
    """How many documents of `held_out` stand word for word in `other` too; holds only the fingerprints of `held_out` in memory."""
    known, times = np.unique(np.concatenate([np.empty(0, np.uint64), *held_out.fingerprints()]), return_counts=True)
    found = np.zeros(len(known), bool)
    for chunk in other.fingerprints():
        found |= np.isin(known, chunk)
    return int(times[found].sum())
