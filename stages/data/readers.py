"""Documents out of one file: txt, jsonl, csv and parquet, streamed, with the file and line in every complaint."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stages.data.text import MAX_DOCUMENT_BYTES, check_size, lines, text_blocks
from stages.params import Data

PARQUET_BATCH_BYTES = 4 << 20


def documents(path: Path, data: Data) -> Iterator[bytes]:
    """The documents of `path` in order, each as the UTF-8 bytes of its text; empty bytes stand for a record without text."""
    return _READERS[kind(path)](path, data)


def kind(path: Path) -> str:
    """What decides how `path` is read: txt, jsonl, csv, parquet; empty: it is no text."""
    name = path.name.lower()
    suffix = name.removesuffix(".gz").rpartition(".")[2] if "." in name else ""
    return suffix if suffix in _READERS and not (suffix == "parquet" and name.endswith(".gz")) else ""


def _txt(path: Path, data: Data) -> Iterator[bytes]:
    """Documents whose concatenation is the file: what stands between two of them belongs to the first."""
    if data.document == "file":
        whole = _whole(path, data)
        return iter([whole] if whole else [])
    return _grouped(path, data)


def _whole(path: Path, data: Data) -> bytes:
    parts, size = [], 0
    for block in text_blocks(path, data.encoding, data.encoding_errors):
        parts.append(utf8(block, path, data, "text"))
        size += len(parts[-1])
        check_size(size, path, "the file")
    return b"".join(parts)


def _grouped(path: Path, data: Data) -> Iterator[bytes]:
    """Paragraphs end behind the blank lines that follow them, lines likewise; blank lines at the start of a file belong to its first document."""
    parts: list[str] = []
    size, begun, blank_before = 0, False, False
    for line in lines(path, data.encoding, data.encoding_errors):
        blank = line.isspace()
        if begun and not blank and (blank_before or data.document == "line"):
            yield utf8("".join(parts), path, data, "text")
            parts, size = [], 0
        parts.append(line)
        size += len(line)
        check_size(size, path, f"a {data.document}")
        begun, blank_before = begun or not blank, blank
    if parts:
        yield utf8("".join(parts), path, data, "text")


def _jsonl(path: Path, data: Data) -> Iterator[bytes]:
    for number, line in enumerate(lines(path, data.encoding, data.encoding_errors), 1):
        if line.isspace():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{number}: no JSON ({error}); each line must be one object such as {{{data.text_field!r}: ...}}") from None
        if not isinstance(record, dict):
            raise ValueError(f"{path}:{number}: a JSON object is needed on each line, this is {type(record).__name__}")
        if data.text_field not in record:
            raise ValueError(no_field(f"{path}:{number}", data.text_field, list(record)))
        yield utf8(record[data.text_field], f"{path}:{number}", data, data.text_field)


def _csv(path: Path, data: Data) -> Iterator[bytes]:
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    reader = csv.reader(lines(path, data.encoding, data.encoding_errors), strict=True)
    try:
        header = next(reader, [])
        if header and data.text_field not in header:
            raise ValueError(no_field(f"{path}:1", data.text_field, header))
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if row and len(row) != len(header):
                raise ValueError(f"{place}: {len(row)} fields, but the header has {len(header)}; put quotes around text that holds a comma")
            if row:
                yield utf8(row[header.index(data.text_field)], place, data, data.text_field)
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num}: not readable as csv ({error}); fields are separated by commas, quotes within quotes are doubled") from None


def _parquet(path: Path, data: Data) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.stat().st_size == 0:
        return
    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            names = file.schema_arrow.names
            if data.text_field not in names:
                raise ValueError(no_field(str(path), data.text_field, names))
            for index, text in enumerate(_column(file, data.text_field)):
                yield utf8(text, f"{path}: row {index}", data, data.text_field)
    except pa.ArrowException as error:
        raise ValueError(f"{path} is not readable as parquet ({error})") from None


def _column(file: Any, field: str) -> Iterator[Any]:
    """The values of one column, a few MiB at a time."""
    metadata = file.metadata
    stored = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    rows = max(1, min(10_000, PARQUET_BATCH_BYTES * max(1, metadata.num_rows) // max(1, stored)))
    for batch in file.iter_batches(batch_size=rows, columns=[field], use_threads=False):
        yield from batch.column(0).to_pylist()


def no_field(place: str, field: str, found: list[str]) -> str:
    return f"{place}: no field {field!r}; there are {', '.join(map(repr, found)) or 'none'}: set data.text_field to one of them"


def utf8(text: Any, place: Path | str, data: Data, field: str) -> bytes:
    """`text` as UTF-8; None as no text. Half a surrogate pair, which JSON and UTF-16 can carry, is handled as data.encoding_errors says."""
    if text is None:
        return b""
    if not isinstance(text, str):
        raise ValueError(f"{place}: the field {field!r} is {type(text).__name__}, not text; set data.text_field to a field that holds text")
    try:
        encoded = text.encode("utf-8")
    except UnicodeEncodeError as error:
        if data.encoding_errors == "strict":
            raise ValueError(
                f"{place}: half a surrogate pair at character {error.start}, which is no text; data.encoding_errors=replace puts U+FFFD there"
            ) from None
        encoded = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")
    check_size(len(encoded), Path(str(place)), "a document")
    return encoded


_READERS: dict[str, Callable[[Path, Data], Iterator[bytes]]] = {"txt": _txt, "jsonl": _jsonl, "csv": _csv, "parquet": _parquet}
