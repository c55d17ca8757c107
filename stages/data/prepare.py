"""From data.source to data/tokens and data/tokenizer: read once, split, tokenize, and put both in place only when they are whole."""

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path

from stages import params
from stages.data import tokenizer as tokenizers
from stages.data.encode import encode
from stages.data.sample import training_texts
from stages.data.shards import SPLITS, TEST_TEXT_FILE, Duplicates, Meta, SourceMeta, Split, SplitMeta, token_dtype, token_file, write_meta
from stages.data.sources import Source, Unit, open_source
from stages.data.splits import Assignment, check_filled, fingerprint
from stages.data.spool import Spool, count_shared

MAX_LISTED_SOURCES = 1000
OnProgress = Callable[[str, int, int | None], None]  # what is being done, how far, of how many (None: not known); in bytes


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was made: meta.json's content and what else a person wants to know of it."""

    meta: Meta
    ignored_files: list[str]
    empty_documents: int  # left out: a record without text has nothing to learn from
    sampled_every: int  # the tokenizer was trained on one in so many parts of the train split
    seconds: dict[str, float]


@dataclass
class Reading:
    """What reading the source found beside the documents."""

    sources: list[SourceMeta]
    empty_documents: int = 0
    has_text: bool = False


def prepare(data: params.Data, settings: params.Tokenizer, folder: Path = Path("data"), on_progress: OnProgress = lambda what, done, total: None) -> Prepared:
    """Make `folder`/tokens and `folder`/tokenizer; ValueError for whatever the user has to change. On any fault neither is touched."""
    source = open_source(data)
    seconds: dict[str, float] = {}
    with _workplace(folder) as work:
        with _timed("read", seconds):
            spools, reading = _read(source, data, work, on_progress)
        with _timed("tokenizer", seconds):
            sampled_every = _make_tokenizer(settings, spools["train"], work, on_progress)
        with _timed("encode", seconds):
            meta = _encode(spools, reading, work, on_progress)
        _put_in_place(work, folder)
    return Prepared(meta, source.ignored, reading.empty_documents, sampled_every, seconds)


@contextmanager
def _timed(what: str, seconds: dict[str, float]) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[what] = time.monotonic() - began


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """A folder for half-made things, gone afterwards; faults of the file system become one sentence that names the path."""
    work = folder / ".tokenize"
    try:
        shutil.rmtree(work, ignore_errors=True)
        (work / "tokens").mkdir(parents=True)
        yield work
    except OSError as error:
        room = "; text and its token ids need about two times the size of the text there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise ValueError(f"{error.filename or folder}: {error.strerror or error}{room}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _read(source: Source, data: params.Data, work: Path, on_progress: OnProgress) -> tuple[dict[Split, Spool], Reading]:
    """Every document of `source` into the spool of its split."""
    assignment, reading = Assignment(data, source), Reading([])
    spools = {split: Spool(_text_file(work, split)) for split in SPLITS}
    done, total = 0, _total_bytes(source)
    with ExitStack() as stack:
        for spool in spools.values():
            stack.enter_context(spool)
        for unit in source.units:
            held_out = assignment.of_unit(unit)
            content = sha256()
            for document in unit.documents():
                _add(document, held_out, assignment, spools, reading)
                if unit.path is None:
                    content.update(document)
                    done += len(document)
                    on_progress("reading", done, total)
            if unit.path is not None:
                done += unit.path.stat().st_size
                on_progress("reading", done, total)
            reading.sources.append(SourceMeta(name=_unit_name(source, unit), sha256=_digest(unit) or content.hexdigest()))
    _check_text(source, spools, reading)
    check_filled({split: spool.documents for split, spool in spools.items()}, data, source)
    return spools, reading


def _add(document: bytes, held_out: Split | None, assignment: Assignment, spools: dict[Split, Spool], reading: Reading) -> None:
    if not document:
        reading.empty_documents += 1
        return
    mark = fingerprint(document)
    spools[held_out or assignment.of_document(mark)].add(document, mark)
    reading.has_text = reading.has_text or not document.isspace()


def _text_file(work: Path, split: Split) -> Path:
    """The test split's text stays, for baselines; that of the others only feeds the tokenizer."""
    return work / "tokens" / TEST_TEXT_FILE if split == "test" else work / f"{split}.txt"


def _total_bytes(source: Source) -> int | None:
    sizes = [unit.path.stat().st_size for unit in source.units if unit.path is not None]
    return sum(sizes) if len(sizes) == len(source.units) else None


def _unit_name(source: Source, unit: Unit) -> str:
    return unit.path.name if unit.path is not None and source.kind == "president" else unit.name


def _digest(unit: Unit) -> str | None:
    if unit.path is None:
        return None
    with unit.path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _check_text(source: Source, spools: dict[Split, Spool], reading: Reading) -> None:
    """ValueError, each in its own words, when the source holds no text at all."""
    if reading.has_text:
        return
    files = f"all its {len(source.units)} files are" if len(source.units) > 1 else "it is"
    if any(spool.documents for spool in spools.values()):
        state = "holds only newlines and blanks"
    elif _total_bytes(source) == 0:
        state = f"holds nothing: {files} empty (0 bytes)"
    else:
        state = "holds no document with text" + (f": all {reading.empty_documents} records are empty" if reading.empty_documents else "")
    raise ValueError(f"data.source {source.name} {state}; put text there, or point data.source elsewhere")


def _make_tokenizer(settings: params.Tokenizer, spool: Spool, work: Path, on_progress: OnProgress) -> int:
    """The tokenizer's folder into `work`; returns every how many batches one was trained on."""
    found, step = training_texts(spool) if settings.source == "train" else (iter(()), 1)
    total = spool.bytes // step

    def texts() -> Iterator[list[str]]:
        done = 0
        for batch in found:
            yield [piece.text for piece in batch]
            done += sum(piece.size for piece in batch)
            on_progress("training the tokenizer", done, max(done, total))

    tokenizers.make(settings, texts(), work / "tokenizer")
    return step


def _encode(spools: dict[Split, Spool], reading: Reading, work: Path, on_progress: OnProgress) -> Meta:
    tokenizer, special = tokenizers.load(work / "tokenizer"), tokenizers.special(work / "tokenizer")
    size = tokenizers.vocab_size(tokenizer)
    dtype, splits = token_dtype(size), dict[Split, SplitMeta]()
    done, total = 0, sum(spool.bytes for spool in spools.values())
    for split, spool in spools.items():
        path = token_file(work / "tokens", split)
        count = encode(
            tokenizer,
            spool,
            path,
            dtype=dtype,
            end_of_text=special.end_of_text,
            on_progress=_within(on_progress, "encoding", done, total),
        )
        splits[split] = SplitMeta(documents=spool.documents, tokens=count, bytes=spool.bytes)
        done += spool.bytes
    meta = Meta(
        vocab_size=size,
        dtype=dtype,
        end_of_text=special.end_of_text,
        mask_token=special.mask,
        pad_token=special.pad,
        splits=splits,
        sources=_listed(reading.sources),
        tokenizer_sha256=tokenizers.fingerprint(work / "tokenizer"),
        duplicates=_duplicates(spools),
    )
    for spool in spools.values():
        spool.keep_only_text()
    write_meta(meta, work / "tokens")
    return meta


def _within(on_progress: OnProgress, what: str, before: int, total: int) -> Callable[[int], None]:
    """Progress of a part that begins at `before`."""
    return lambda done: on_progress(what, before + done, total)


def _listed(sources: list[SourceMeta]) -> list[SourceMeta]:
    """The sources one by one, or, where they are very many, one hash over all."""
    if len(sources) <= MAX_LISTED_SOURCES:
        return sources
    together = sha256("".join(f"{entry.sha256}  {entry.name}\n" for entry in sources).encode())
    return [SourceMeta(name=f"{len(sources)} files", sha256=together.hexdigest())]


def _duplicates(spools: dict[Split, Spool]) -> Duplicates:
    return Duplicates(
        validation_in_train=count_shared(spools["validation"], spools["train"]),
        test_in_train=count_shared(spools["test"], spools["train"]),
        test_in_validation=count_shared(spools["test"], spools["validation"]),
    )


def _put_in_place(work: Path, folder: Path) -> None:
    for name in ("tokens", "tokenizer"):
        if (folder / name).exists():
            (folder / name).rename(work / f"old-{name}")
        (work / name).rename(folder / name)
