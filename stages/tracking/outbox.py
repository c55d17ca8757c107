"""What a stage has to tell MLflow, as a folder on disk: the stage appends and never waits, a recorder delivers, the next command replays.

`events.jsonl` holds one JSON object a line, `files/` the artifacts, `output.log` what the stage printed, `delivered.json` how far delivery has come.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from stages.tracking import processes

LOG_HEAD_BYTES, LOG_TAIL_BYTES = 1 << 20, 8 << 20  # of what a stage printed; the middle of more is left out
LONGEST_END = 1 << 14  # bytes of the event that ends a stage
OPENING = dict.fromkeys(("key", "stage", "name", "process", "dvc", "workspace", "experiment"), str) | {
    "closing": bool,
    "params": dict,
    "tags": dict,
    "secrets": list,
}

Event = dict[str, Any]


def home() -> Path:
    """The folder .underbudget of the project: of the parent repository in runs that stand in a temporary copy."""
    root = os.environ.get("DVC_ROOT")
    if root:
        return Path(root).resolve() / ".underbudget"
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), here) / ".underbudget"


def make(stage: str) -> "Outbox":
    """An outbox in the project; where nothing can be written, one that at least lets the stage run."""
    try:
        return Outbox.create(home(), stage)
    except OSError as error:
        print(f"tracking: {error}; this stage will be missing from MLflow", file=sys.stderr)
        return Outbox.create(Path(tempfile.mkdtemp(prefix="underbudget-")), stage)


class Outbox:
    """One stage's folder under home()/outbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log, self.files = folder / "output.log", folder / "files"
        self.home = folder.parents[1]
        self._events, self._delivered = folder / "events.jsonl", folder / "delivered.json"
        self._opening: Event | None = None

    @classmethod
    def create(cls, parent: Path, stage: str) -> "Outbox":
        """A new one, named so that sorting by name sorts by age."""
        name = f"{time.time_ns():020d}-{os.getpid()}-{stage}"
        made, outbox = parent / "outbox.new" / name, cls(parent / "outbox" / name)
        (made / "files").mkdir(parents=True)
        (made / "owner").write_text(processes.identity(), "utf-8")
        outbox.folder.parent.mkdir(exist_ok=True)
        made.rename(outbox.folder)  # a recorder that found it without its owner would clear it away
        return outbox

    def writer(self) -> "Writer":
        """The stage's end of it."""
        return Writer(self._events)

    def owner(self) -> str:
        """Identity of the process that made it, before its first word."""
        try:
            return (self.folder / "owner").read_text("utf-8")
        except FileNotFoundError:
            return ""

    def lock(self) -> FileLock:
        """Held by whoever delivers; gone with its process."""
        return FileLock(f"{self.folder}.lock", thread_local=False)

    def unlock(self, lock: FileLock) -> None:
        """Let go of it, and of its file when everything was delivered."""
        lock.release()
        if not self.folder.is_dir():
            Path(lock.lock_file).unlink(missing_ok=True)

    def ending(self, offset: int) -> bool:
        """Whether the last event behind byte `offset` is the stage's end."""
        try:
            with self._events.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(offset, end - LONGEST_END))
                return b'\n{"event": "end"' in b"\n" + file.read()
        except FileNotFoundError:
            return False

    def points(self) -> int:
        """How many single values the stage has written."""
        total, offset = 0, 0
        while (found := self.read(offset))[0]:
            total, offset = total + sum(len(event["values"]) for event in found[0] if event["event"] == "point"), found[1]
        return total

    def read(self, offset: int, limit: int = 1 << 22) -> tuple[list[Event], int]:
        """The whole events from byte `offset` on, about `limit` bytes at most, and the offset behind them."""
        try:
            with self._events.open("rb") as file:
                file.seek(offset)
                data = file.read(limit)
        except FileNotFoundError:
            return [], offset
        data = data[: data.rfind(b"\n") + 1]
        return [event for line in data.splitlines() if (event := _event(line))], offset + len(data)

    def opening(self) -> Event | None:
        """The first event, which says whose folder this is; None while there is none, or when it is damaged."""
        if self._opening is None:
            try:
                with self._events.open("rb") as file:
                    line = file.readline()
            except FileNotFoundError:
                return None
            event = _event(line) if line.endswith(b"\n") else None
            whole = event is not None and all(isinstance(event.get(name), kind) for name, kind in OPENING.items())
            self._opening = event if whole else None
        return self._opening

    def printed(self) -> str:
        """The stage's log as text, without the middle of a huge one."""
        with self.log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= LOG_HEAD_BYTES + LOG_TAIL_BYTES:
                return file.read().decode("utf-8", "replace")
            head = file.read(LOG_HEAD_BYTES)
            file.seek(size - LOG_TAIL_BYTES)
            cut = f"\n... {size - LOG_HEAD_BYTES - LOG_TAIL_BYTES} bytes are left out here ...\n".encode()
            return (head + cut + file.read()).decode("utf-8", "replace")

    def delivered(self) -> Event:
        """How far delivery has come: offset, points, refused, run_id."""
        try:
            return dict(json.loads(self._delivered.read_text("utf-8")))
        except (FileNotFoundError, ValueError):
            return {}

    def acknowledge(self, state: Event) -> None:
        """Remember how far delivery has come; a crash leaves the old state or the new one, a full disk the old one: then something is sent twice."""
        with contextlib.suppress(OSError):
            replace_text(self._delivered, json.dumps(state))

    def set_aside(self) -> Path:
        """Keep it for a person to look at, where no command tries it again; returns the place."""
        place = self.home / "refused"
        place.mkdir(exist_ok=True)
        return self.folder.rename(place / self.folder.name)

    def remove(self) -> None:
        """Everything was delivered."""
        shutil.rmtree(self.folder, ignore_errors=True)


def waiting(parent: Path) -> Iterator[Outbox]:
    """The folders under parent/outbox, the oldest first."""
    found = sorted(folder for folder in (parent / "outbox").glob("*") if folder.is_dir())
    yield from (Outbox(folder) for folder in found)


def _event(line: bytes) -> Event | None:
    """A line's event; None for a line damaged by a full disk or a crash."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


class Writer:
    """Appends events; what cannot be written (a full disk) is counted, never raised."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.lost = 0
        self._broken = False

    def write(self, event: str, **values: Any) -> bool:
        """Append one event; False when the disk did not take it."""
        line = json.dumps({"event": event, **values}, allow_nan=False, default=str).encode() + b"\n"
        line = b"\n" + line if self._broken else line  # end the half line of a failed write
        try:
            self._broken = os.write(self._file, line) != len(line)
        except OSError:
            self._broken = True
        self.lost += self._broken
        return not self._broken

    def close(self) -> None:
        """No more events."""
        os.close(self._file)


def replace_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all: under a temporary name, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def take(lock: FileLock) -> bool:
    """Acquire without waiting."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True
