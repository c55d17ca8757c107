"""What dvc.yaml says each stage depends on, as content: the key of an experiment, and what changed while a stage ran."""

import contextlib
import fnmatch
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.tracking.outbox import replace_text
from stages.tracking.results import flat

KEY_LENGTH = 16  # hexadecimal digits
LARGE_BYTES = 32 << 20
SETTLED_SECONDS = 2
SIZE = 2  # place of the size in a file's mark; its times follow


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of dvc.yaml: paths as written there, parameters as dotted keys of params.yaml."""

    dependencies: tuple[str, ...] = ()
    params: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def load_yaml(path: Path) -> Any:
    """The file's values; an absent file is an empty mapping."""
    return parse_yaml(path.read_text("utf-8")) if path.is_file() else {}


def parse_yaml(text: str) -> Any:
    """The values, read as YAML 1.2 as DVC does; nothing is an empty mapping."""
    return YAML(typ="safe", pure=True).load(text) or {}


def stages(root: Path = Path()) -> dict[str, Stage]:
    """The stages of root/dvc.yaml by name."""
    found = (load_yaml(root / "dvc.yaml").get("stages") or {}).items()
    return {name: _stage(values) for name, values in found if "cmd" in values}


def _stage(values: Mapping[str, Any]) -> Stage:
    names = {kind: tuple(_name(entry) for entry in values.get(kind) or ()) for kind in ("deps", "outs", "metrics", "plots")}
    params = tuple(key for entry in values.get("params") or () for key in _param_keys(entry))
    return Stage(names["deps"], params, names["outs"] + names["metrics"] + names["plots"])


def _name(entry: str | Mapping[str, Any]) -> str:
    """A path of dvc.yaml, without the options that may follow it."""
    return (entry if isinstance(entry, str) else next(iter(entry))).rstrip("/")


def _param_keys(entry: str | Mapping[str, Any]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry.get("params.yaml") or ())


def free_dependencies(pipeline: Mapping[str, Stage]) -> list[str]:
    """Every dependency that no stage makes: code, lock and inputs."""
    made = {output for stage in pipeline.values() for output in stage.outputs}
    named = {dependency for stage in pipeline.values() for dependency in stage.dependencies}
    return sorted(path for path in named if not any(path == output or path.startswith(f"{output}/") for output in made))


def follows(pipeline: Mapping[str, Stage], name: str) -> bool:
    """Whether a stage needs what another one makes."""
    made = {output for stage in pipeline.values() for output in stage.outputs}
    return name in pipeline and not made.isdisjoint(pipeline[name].dependencies)


def key(params: Mapping[str, Any], contents: "Contents", pipeline: Mapping[str, Stage]) -> str:
    """The experiment's key: the same for the same parameters, code, lock and inputs, in every clone and kind of run."""
    digest = hashlib.sha256(json.dumps(params, sort_keys=True, ensure_ascii=False).encode())
    for path in free_dependencies(pipeline):
        digest.update(json.dumps([path, contents.files(path)]).encode())
    return digest.hexdigest()[:KEY_LENGTH]


@dataclass(slots=True)
class Contents:
    """Hashes of files under `root`; a file is read again only when its place, size or times changed.

    Those of large files outlive the process in the file `memory`.
    """

    root: Path = Path()
    memory: Path | None = None
    _seen: dict[str, tuple[list[int], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.memory is not None and self.memory.is_file():
            with contextlib.suppress(ValueError):
                self._seen = {path: (mark, content) for path, (mark, content) in json.loads(self.memory.read_text("utf-8")).items()}

    def remember(self) -> None:
        """Keep the hashes of large files, unless one was written so lately that another write could leave no trace in its times."""
        late = time.time_ns() - SETTLED_SECONDS * 10**9
        kept = {path: entry for path, entry in self._seen.items() if entry[0][SIZE] >= LARGE_BYTES and max(entry[0][SIZE + 1 :]) < late}
        if self.memory is not None and kept:
            with contextlib.suppress(OSError):
                replace_text(self.memory, json.dumps(kept))

    def files(self, path: str) -> dict[str, str]:
        """sha256 by path of the file, or of every file in the folder; nothing when it is not there. What .dvcignore names is left out."""
        start = self.root / path
        if start.is_file():
            return {path: self._hash(start)}
        return {found.relative_to(self.root).as_posix(): self._hash(found) for found in sorted(_walk(start, ignored(self.root)))}

    def _hash(self, path: Path) -> str:
        try:
            status = path.stat()
            mark = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            name = os.path.abspath(path)  # noqa: PTH100  links stay links
            known = self._seen.get(name)
            if known is None or known[0] != mark:
                known = self._seen[name] = (mark, file_hash(path))
            return known[1]
        except FileNotFoundError:
            return "gone"


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ignored(root: Path) -> tuple[str, ...]:
    """Names that DVC leaves out of folders: its own, and those in .dvcignore."""
    lines = (root / ".dvcignore").read_text("utf-8").splitlines() if (root / ".dvcignore").is_file() else []
    names = (line.strip().strip("/") for line in lines)
    return (".git", ".dvc", ".hg", "__pycache__", *(name for name in names if name and not name.startswith(("#", "!"))))


def _walk(folder: Path, skip: tuple[str, ...]) -> Iterator[Path]:
    """Files below `folder`, links to folders followed once."""
    visited: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        place = os.path.realpath(parent)
        if place in visited:
            folders.clear()
            continue
        visited.add(place)
        folders[:] = [name for name in folders if not any(fnmatch.fnmatch(name, pattern) for pattern in skip)]
        yield from (Path(parent, name) for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in skip))


@dataclass(slots=True)
class Snapshot:
    """What a stage read when it began, so that a later edit is noticed: DVC hashes only after the command."""

    stage: Stage
    contents: Contents
    params: str
    files: dict[str, str]

    @classmethod
    def take(cls, stage: Stage, contents: Contents) -> "Snapshot":
        """The stage's dependencies and parameters as they are now."""
        return cls(stage, contents, _params_text(contents), _files(stage, contents))

    def changes(self) -> list[str]:
        """One line for every parameter and file that is not what it was."""
        files = _files(self.stage, self.contents)
        lines = self._changed_params()
        for path in sorted(self.files.keys() | files.keys()):
            if self.files.get(path) != files.get(path):
                lines.append(f"{path}: {'added' if path not in self.files else 'removed' if path not in files else 'changed'}")
        return lines

    def _changed_params(self) -> list[str]:
        now = _params_text(self.contents)
        if now == self.params:
            return []
        try:
            old, new = parse_yaml(self.params), parse_yaml(now)
        except YAMLError:
            return ["params.yaml: no longer readable"]
        before, after = (dict(flat({name: _lookup(values, name) for name in self.stage.params})) for values in (old, new))
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        return [f"params.yaml: {name} {before.get(name)!r} -> {after.get(name)!r}" for name in changed]


def _params_text(contents: Contents) -> str:
    path = contents.root / "params.yaml"
    return path.read_text("utf-8", "replace") if path.is_file() else ""


def _files(stage: Stage, contents: Contents) -> dict[str, str]:
    return {path: content for name in stage.dependencies for path, content in contents.files(name).items()}


def _lookup(values: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values
