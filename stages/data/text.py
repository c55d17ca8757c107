"""Files as text: plain or gzip, decoded block by block, with the byte offset in every complaint and line ends kept as they are."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, cast

BLOCK_BYTES = 1 << 20
MAX_DOCUMENT_BYTES = 32 << 20  # so that the few copies a document passes through stay far below 500 MB
WIDE_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}

Errors = Literal["strict", "replace"]


def check_encoding(encoding: str) -> None:
    """ValueError naming data.encoding when Python knows no such text encoding."""
    try:
        codecs.lookup(encoding)
        "".encode(encoding)  # LookupError for codecs that are no text encodings, such as hex
    except (LookupError, ValueError):
        raise ValueError(f"data.encoding: {encoding!r} is no text encoding that Python knows; allowed: utf-8, utf-16, latin-1, cp1252, ...") from None


def blocks(path: Path) -> Iterator[bytes]:
    """The bytes of `path` in blocks, unpacked where its name ends in .gz; ValueError for a damaged gzip file."""
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")) as file:
            while block := file.read(BLOCK_BYTES):
                yield block
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no whole gzip file ({error}); copy it again, or unpack it and drop the .gz") from None


def text_blocks(path: Path, encoding: str, errors: Errors) -> Iterator[str]:
    """`path` decoded, block by block, without a byte order mark; ValueError names the file and byte offset of what is not `encoding`."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    offset, first = 0, True
    for block in _with_end(path):
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise ValueError(_bad_bytes(path, encoding, offset - waiting + error.start, error)) from None
        if first and text:
            text, first = text.removeprefix("\ufeff"), False
            _refuse_wide(path, encoding, text)
        offset += len(block)
        if text:
            yield text


def _with_end(path: Path) -> Iterator[bytes]:
    yield from blocks(path)
    yield b""


def _bad_bytes(path: Path, encoding: str, offset: int, error: UnicodeDecodeError) -> str:
    byte = error.object[error.start : error.start + 1].hex()
    start = next(blocks(path), b"")[:2]
    advice = (
        f"set data.encoding to {WIDE_MARKS[start]}, as its first bytes say"
        if start in WIDE_MARKS
        else "set data.encoding to the file's own (latin-1, cp1252, utf-16, ...)"
    )
    return f"{path}: byte 0x{byte} at offset {offset} is not {encoding} ({error.reason}); {advice}, or data.encoding_errors=replace to put U+FFFD in its place"


def _refuse_wide(path: Path, encoding: str, text: str) -> None:
    """UTF-16 without a mark is valid UTF-8 full of zeros: refuse what would be learnt as garbage."""
    sample = text[:4096]
    if 4 * sample.count("\0") > len(sample):
        raise ValueError(
            f"{path}: every other character is a zero byte when read as {encoding}; it looks like UTF-16: set data.encoding to utf-16-le or utf-16-be"
        )


def lines(path: Path, encoding: str, errors: Errors) -> Iterator[str]:
    r"""The lines of `path`, each with its end ("\n" or "\r\n", as it stands); a lone "\r" ends none."""
    parts: list[str] = []
    size = 0
    for block in text_blocks(path, encoding, errors):
        first, *rest = block.split("\n")
        parts.append(first)
        size = size + len(first)
        check_size(size, path, "a line")
        for part in rest:
            yield "".join(parts) + "\n"
            parts, size = [part], len(part)
    if last := "".join(parts):
        yield last


def check_size(size: int, path: Path, what: str) -> None:
    """ValueError when a document of `size` is too large to be held in memory."""
    if size > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"{path}: {what} is above {MAX_DOCUMENT_BYTES >> 20} MiB, the most that one document may have; "
            "for txt set data.document to paragraph or line, else split it into several documents"
        )
