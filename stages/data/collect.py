"""Reads data.source once: every document into the spool of its split, with the hash of everything that was read."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path

from stages import params
from stages.data.shards import SPLITS, TEST_TEXT_FILE, SourceMeta, Split
from stages.data.sources import Source, Unit
from stages.data.splits import Assignment, check_filled, fingerprint
from stages.data.spool import Spool

REPORT_BYTES = 1 << 18
OnProgress = Callable[[str, int, int | None], None]  # what is being done, how far, of how many (None: not known); in bytes


@dataclass
class Collected:
    """The documents of each split, and what else reading found."""

    spools: dict[Split, Spool]
    sources: list[SourceMeta] = field(default_factory=list)
    empty_documents: int = 0  # left out: a record without text has nothing to learn from
    has_text: bool = False

    def add(self, document: bytes, held_out: Split | None, assignment: Assignment) -> None:
        """Put one document where it belongs; `held_out` is the split that its unit's name puts it in."""
        if not document:
            self.empty_documents += 1
            return
        mark = fingerprint(document)
        self.spools[held_out or assignment.of_document(mark)].add(document, mark)
        self.has_text = self.has_text or not document.isspace()


def collect(source: Source, data: params.Data, work: Path, on_progress: OnProgress) -> Collected:
    """Everything in `source`, as files in `work`; ValueError when there is no text, or a split got none."""
    assignment = Assignment(data, source)
    # The test split's text stays, for baselines; that of the others only feeds the tokenizer.
    places = {split: work / "tokens" / TEST_TEXT_FILE if split == "test" else work / f"{split}.txt" for split in SPLITS}
    collected = Collected({split: Spool(path) for split, path in places.items()})
    done, total = 0, total_bytes(source)
    with ExitStack() as stack:
        for spool in collected.spools.values():
            stack.enter_context(spool)
        for unit in source.units:
            held_out = assignment.of_unit(unit)
            for document in _reported(unit, done, total, on_progress):
                collected.add(document, held_out, assignment)
            done += _size(unit)
            on_progress("reading", done, total)
    collected.sources = _hashes(source, collected)
    _check_text(source, collected)
    check_filled({split: spool.documents for split, spool in collected.spools.items()}, data, source)
    return collected


def _reported(unit: Unit, before: int, total: int | None, on_progress: OnProgress) -> Iterator[bytes]:
    """The unit's documents; how far they are is told now and then, never beyond the unit's own size (text may be packed)."""
    done = told = 0
    for document in unit.documents():
        yield document
        done += len(document)
        if done - told >= REPORT_BYTES:
            told = done
            on_progress("reading", before + (done if total is None else min(done, _size(unit))), total)


def _size(unit: Unit) -> int:
    return unit.path.stat().st_size if unit.path is not None else 0


def total_bytes(source: Source) -> int | None:
    """The size of all files of `source`; None for a hub dataset."""
    return sum(map(_size, source.units)) if source.kind != "split" else None


def _hashes(source: Source, collected: Collected) -> list[SourceMeta]:
    """The content hash of every file; for a hub dataset, of its documents' fingerprints."""
    if source.kind == "split":
        content = sha256()
        for split in SPLITS:
            for chunk in collected.spools[split].fingerprints():
                content.update(chunk.tobytes())
        return [SourceMeta(name=source.name, sha256=content.hexdigest())]
    found = []
    for unit in source.units:
        assert unit.path is not None
        with unit.path.open("rb") as file:
            found.append(SourceMeta(name=unit.path.name if source.kind == "president" else unit.name, sha256=file_digest(file, "sha256").hexdigest()))
    return found


def _check_text(source: Source, collected: Collected) -> None:
    """ValueError, each in its own words, when the source holds no text at all."""
    if collected.has_text:
        return
    files = f"all its {len(source.units)} files are" if len(source.units) > 1 else "it is"
    if any(spool.documents for spool in collected.spools.values()):
        state = "holds only newlines and blanks"
    elif total_bytes(source) == 0:
        state = f"holds nothing: {files} empty (0 bytes)"
    else:
        state = "holds no document with text" + (f": all {collected.empty_documents} records are empty" if collected.empty_documents else "")
    raise ValueError(f"data.source {source.name} {state}; put text there, or point data.source elsewhere")
