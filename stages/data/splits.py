"""Which split a document belongs to: by its unit's name, or by the hash of its content, so that it stays where it is when documents are added."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b

from stages.data.shards import SPLITS, Split
from stages.data.sources import Source, Unit
from stages.params import Data

HELD_OUT: tuple[Split, ...] = ("validation", "test")
SHARES = "`-S data.validation=0.05 -S data.test=0.05`"


def fingerprint(document: bytes) -> int:
    """64 bits of the document's hash: decides its split, and finds its exact duplicates (by chance once in 10^7 among 10^6 pairs of 10^6)."""
    return int.from_bytes(blake2b(document, digest_size=8).digest(), "little")


class Assignment:
    """Splits by data.validation and data.test: names match whole units, shares take documents of all other units."""

    def __init__(self, data: Data, source: Source) -> None:
        self._names: dict[Split, list[str]] = {split: held for split in HELD_OUT if isinstance(held := getattr(data, split), list)}
        self._shares: dict[Split, float] = {split: held for split in HELD_OUT if isinstance(held := getattr(data, split), float)}
        self._kind = source.kind
        for split in self._names:
            self._check(split, source)

    def of_unit(self, unit: Unit) -> Split | None:
        """The split that holds `unit` out by name; None: its documents are shared out one by one. ValueError when two splits claim it."""
        claimed = [split for split, names in self._names.items() if any(self._matches(unit.name, name) for name in names)]
        if len(claimed) > 1:
            raise ValueError(f"data.validation and data.test both hold out {unit.name!r}; a {self._kind} belongs to one split")
        return claimed[0] if claimed else None

    def of_document(self, document_fingerprint: int) -> Split:
        """The split of a document of a unit that no name holds out."""
        place = document_fingerprint / 2**64
        for split in reversed(HELD_OUT):  # test first: changing data.validation never moves a document into or out of test
            share = self._shares.get(split, 0.0)
            if place < share:
                return split
            place -= share
        return "train"

    def _matches(self, name: str, pattern: str) -> bool:
        if self._kind != "file":
            return name == pattern
        return fnmatchcase(name, pattern) or name.startswith(pattern.rstrip("/") + "/")

    def _check(self, split: Split, source: Source) -> None:
        names = list(dict.fromkeys(unit.name for unit in source.units))
        unknown = [name for name in self._names[split] if not any(self._matches(known, name) for known in names)]
        if not unknown:
            return
        what = {"president": "president", "file": "file", "split": "split of the dataset"}[self._kind]
        fault = f"data.{split}: {_quoted(unknown)} name{'s' if len(unknown) == 1 else ''} no {what} of data.source {source.name}; "
        close = difflib.get_close_matches(unknown[0], names, n=1)
        if close and self._kind == "president":
            raise ValueError(f"{fault}did you mean {close[0]!r}?")
        advice = "" if self._kind == "president" else f", or hold out a share of the documents: {SHARES}"
        raise ValueError(f"{fault}allowed: {_quoted(names)}{advice}")


def check_filled(documents: dict[Split, int], data: Data, source: Source) -> None:
    """ValueError when a split got no document, naming the setting and what to do."""
    total = sum(documents.values())
    for split in SPLITS:
        if documents[split]:
            continue
        if split == "train":
            raise ValueError(f"data.validation and data.test hold out all {total} documents of data.source {source.name}; leave some to train on")
        raise ValueError(
            f"data.{split} {getattr(data, split)} holds out none of the {total} documents of data.source {source.name}; {_remedy(split, total, data, source)}"
        )


def _remedy(split: Split, total: int, data: Data, source: Source) -> str:
    smaller = {"file": "paragraph", "paragraph": "line"}.get(data.document)
    texts = any(unit.path is not None and ".txt" in unit.path.name for unit in source.units)
    finer = f"`-S data.document={smaller}` makes more documents of them, " if smaller and texts else ""
    share = getattr(data, split)
    larger = min(0.45, max(5 / max(total, 1), 2 * share if isinstance(share, float) else 0.0))
    raised = f"a larger share such as `-S data.{split}={larger:.2g}` takes more of them, "
    if total < len(SPLITS):
        return f"{finer}or add documents: each split needs one, so at least {len(SPLITS)}"
    return f"{finer}{raised}or names (data.{split}: [...]) choose {source.kind}s"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
