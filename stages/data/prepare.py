"""From data.source to data/tokens and data/tokenizer: read, split, tokenize, and put both in place only when they are whole."""

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from stages import params
from stages.data.collect import Collected, OnProgress, collect
from stages.data.encode import encode
from stages.data.sample import training_texts
from stages.data.shards import Duplicates, Meta, SourceMeta, Split, SplitMeta, token_dtype, token_file, write_meta
from stages.data.sources import open_source
from stages.data.spool import Spool, count_shared
from stages.data.tokenizer import content_hash, load, make, special, vocab_size

MAX_LISTED_SOURCES = 1000
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was made: meta.json's content and what else a person wants to know of it."""

    meta: Meta
    ignored_files: list[str]
    empty_documents: int
    sampled_every: int  # the tokenizer was trained on one in so many parts of the train split
    seconds: dict[str, float]


def _silent(what: str, done: int, total: int | None) -> None:
    pass


def prepare(data: params.Data, settings: params.Tokenizer, folder: Path = Path("data"), on_progress: OnProgress = _silent) -> Prepared:
    """Make `folder`/tokens and `folder`/tokenizer; ValueError for whatever the user has to change. On any fault neither is touched."""
    source = open_source(data)
    seconds: dict[str, float] = {}
    with _workplace(folder) as work:
        with _timed("read", seconds):
            collected = collect(source, data, work, on_progress)
        with _timed("tokenizer", seconds):
            sampled_every = _make_tokenizer(settings, collected.spools["train"], work / "tokenizer", on_progress)
        with _timed("encode", seconds):
            meta = _encode(collected, work, on_progress)
        write_meta(meta, work / "tokens")
        _put_in_place(work, folder)
    return Prepared(meta, source.ignored, collected.empty_documents, sampled_every, seconds)


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
        room = "; text and its token ids need about two times the size of the text there" if error.errno in DISK_FULL else ""
        raise ValueError(f"{error.filename or folder}: {error.strerror or error}{room}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _make_tokenizer(settings: params.Tokenizer, train: Spool, folder: Path, on_progress: OnProgress) -> int:
    """The tokenizer into `folder`; returns every how many batches of the train split one was trained on."""
    found, step = training_texts(train) if settings.source == "train" else (iter(()), 1)
    total = train.bytes // step

    def texts() -> Iterator[list[str]]:
        done = 0
        for batch in found:
            yield [piece.text for piece in batch]
            done += sum(piece.size for piece in batch)
            on_progress("training the tokenizer", done, max(done, total))

    make(settings, texts(), folder)
    return step


def _encode(collected: Collected, work: Path, on_progress: OnProgress) -> Meta:
    """The token files of all splits, and what is known of them."""
    tokenizer, ids = load(work / "tokenizer"), special(work / "tokenizer")
    size = vocab_size(tokenizer)
    meta = Meta(
        vocab_size=size,
        dtype=token_dtype(size),
        end_of_text=ids.end_of_text,
        mask_token=ids.mask,
        pad_token=ids.pad,
        splits=_encode_splits(tokenizer, collected.spools, work / "tokens", token_dtype(size), ids.end_of_text, on_progress),
        sources=_listed(collected.sources),
        tokenizer_sha256=content_hash(work / "tokenizer"),
        duplicates=_duplicates(collected.spools),
    )
    for spool in collected.spools.values():
        spool.keep_only_text()
    return meta


def _encode_splits(tokenizer: Any, spools: dict[Split, Spool], folder: Path, dtype: str, end_of_text: int, on_progress: OnProgress) -> dict[Split, SplitMeta]:
    splits = dict[Split, SplitMeta]()
    done, total = 0, sum(spool.bytes for spool in spools.values())
    for split, spool in spools.items():
        report = _within(on_progress, "encoding", done, total)
        tokens = encode(tokenizer, spool, token_file(folder, split), dtype=dtype, end_of_text=end_of_text, on_progress=report)
        splits[split] = SplitMeta(documents=spool.documents, tokens=tokens, bytes=spool.bytes)
        done += spool.bytes
    return splits


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
