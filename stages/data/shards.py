"""Flat files of token ids and what is known of them: the only place that knows how data/tokens/ is laid out."""

import os
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

TOKENS_FOLDER = Path("data/tokens")
META_FILE = "meta.json"
TEST_TEXT_FILE = "test.txt"

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class _Record(BaseModel):
    """A part of meta.json: frozen, strict, nothing unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SplitMeta(_Record):
    """What one split holds; `bytes` counts the UTF-8 bytes of its text, for bits per byte."""

    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    bytes: int = Field(ge=0)


class SourceMeta(_Record):
    """One source file (or the whole hub dataset) and the hash of its content."""

    name: str
    sha256: str


class Duplicates(_Record):
    """Documents whose exact text also stands in another split."""

    validation_in_train: int = Field(ge=0)
    test_in_train: int = Field(ge=0)
    test_in_validation: int = Field(ge=0)


class Meta(_Record):
    """meta.json: everything that a reader of the token files needs to know, and nothing that differs between two equal runs."""

    vocab_size: int = Field(ge=1)
    dtype: Literal["uint16", "uint32"]
    end_of_text: int = Field(ge=0)
    mask_token: int | None
    pad_token: int = Field(ge=0)
    splits: dict[Split, SplitMeta]
    sources: list[SourceMeta]
    tokenizer_sha256: str
    duplicates: Duplicates

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if set(self.splits) != set(SPLITS):
            raise ValueError(f"splits must be {', '.join(SPLITS)}, not {', '.join(self.splits)}")
        return self


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest of the two types that holds every id below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_meta(meta: Meta, folder: Path) -> None:
    """Write meta.json into `folder`."""
    (folder / META_FILE).write_text(meta.model_dump_json(indent=2) + "\n", "utf-8")


def read_meta(folder: Path = TOKENS_FOLDER) -> Meta:
    """Read meta.json; ValueError when it is missing or not what tokenize writes."""
    path = folder / META_FILE
    try:
        return Meta.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path} is missing; make it with `dvc repro tokenize` (or bring it back with `dvc checkout`)") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{path} is damaged ({place}: {first['msg']}); make it again with `dvc repro -f -s tokenize`") from None


def token_file(folder: Path, split: str) -> Path:
    """Where the ids of `split` lie."""
    return folder / f"{split}.bin"


class Shard:
    """The token ids of one split, read with pread: no mapping, no shared position, so any number of processes and threads may read at once."""

    def __init__(self, path: Path, split: str, dtype: Literal["uint16", "uint32"], meta: SplitMeta) -> None:
        self.path, self.split, self.dtype = path, split, np.dtype(dtype).newbyteorder("<")
        self.documents, self.tokens, self.bytes = meta.documents, meta.tokens, meta.bytes
        self._descriptor: int | None = None

    def read(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Ids of the tokens [start, stop) as int64 (stop - start,); IndexError outside the split."""
        if not 0 <= start <= stop <= self.tokens:
            raise IndexError(f"tokens [{start}, {stop}) are outside the {self.split} split of {self.tokens} tokens")
        size = self.dtype.itemsize
        buffer = bytearray((stop - start) * size)
        view, filled = memoryview(buffer), 0
        while filled < len(buffer):
            count = os.preadv(self._open(), [view[filled:]], start * size + filled)
            if count == 0:
                raise ValueError(f"{self.path} became shorter while it was read; make it again with `dvc repro -f -s tokenize`")
            filled += count
        return np.frombuffer(buffer, self.dtype).astype(np.int64)

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        return self._descriptor

    def close(self) -> None:
        """Give the file back; reading opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": None}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None and os is not None:  # modules may be gone when the interpreter ends, which closes it as well
            self.close()


def open_split(folder: Path, split: Split) -> Shard:
    """The shard of `split` in `folder`; ValueError when the file is missing or its size is not what meta.json says."""
    meta = read_meta(folder)
    path = token_file(folder, split)
    expected = meta.splits[split].tokens * np.dtype(meta.dtype).itemsize
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        state = "is missing" if found is None else f"holds {found} bytes, {META_FILE} says {expected}"
        raise ValueError(f"{path} {state}; make it again with `dvc repro -f -s tokenize`")
    return Shard(path, split, meta.dtype, meta.splits[split])
