"""Everything a stage prints, native code included, goes into a log file and from there to the screen: no pipe that could block or break."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from stages.tracking import console

if TYPE_CHECKING:
    from rich.progress import Progress as Live

POLL_SECONDS = 0.05
LEAST_FREE_BYTES = 4 << 20  # on the log's disk: below that nothing is logged any more, or printing would fail
CHUNK_BYTES = 1 << 16


class Tee:
    """Sends file descriptors 1 and 2 to `log` and copies what arrives there to the real standard output until `close`.

    The log is complete even when the process is killed, since the kernel writes it; only the copying to the screen lives in a thread.
    """

    def __init__(self, log: Path) -> None:
        _flush()
        self.file: TextIO = open(os.dup(1), "w", encoding=sys.stdout.encoding or "utf-8", errors="replace", buffering=1)  # noqa: SIM115, PTH123
        self._saved = {1: os.dup(1), 2: os.dup(2)}
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._read = os.open(log, os.O_RDONLY)
        self._own: list[tuple[int, int]] = []  # spans of the log that the screen does not show
        self._live: Live | None = None
        self._position, self._partial = os.fstat(self._read).st_size, b""
        self._lock, self._closing, self._logging = threading.RLock(), threading.Event(), True
        self._buffering = _line_buffering(True)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)
        self._thread = threading.Thread(target=self._follow, name="screen", daemon=True)
        self._thread.start()
        console.attach(self)

    def note(self, line: str) -> None:
        """Put a line into the log that the screen does not show."""
        data = line.encode("utf-8", "replace") + b"\n"
        with self._lock, contextlib.suppress(OSError):
            written = os.write(self._log, data)
            end = os.lseek(self._log, 0, os.SEEK_CUR)
            self._own.append((end - written, end))

    def lift(self, live: "Live | None") -> None:
        """Print what arrives above `live`, until it is None again."""
        self.drain()
        with self._lock:
            self._live = live

    def drain(self) -> None:
        """Bring the screen up to the log's end."""
        _flush()
        with self._lock:
            while data := self._next():
                self._show(data)

    def close(self) -> None:
        """Give the descriptors back; what was printed is on the screen when this returns."""
        console.detach(self)
        _flush()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)
            os.close(saved)
        self._closing.set()
        self._thread.join()
        self.drain()
        self._live = None
        if self._partial:
            self._show(b"")
        _line_buffering(self._buffering)
        self.file.close()
        os.close(self._log)
        os.close(self._read)

    def _follow(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            with self._lock:
                while data := self._next():
                    self._show(data)
            if self._logging and _free_bytes(self._log) < LEAST_FREE_BYTES:
                self._stop_logging()

    def _stop_logging(self) -> None:
        """Let everything go to the screen alone."""
        self._logging = False
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)
        os.write(self.file.fileno(), b"tracking: the disk is full; what follows is not in the log\n")

    def _next(self) -> bytes:
        """The next bytes for the screen."""
        while self._own and self._own[0][0] <= self._position:
            self._position = max(self._position, self._own.pop(0)[1])
        limit = min(CHUNK_BYTES, self._own[0][0] - self._position) if self._own else CHUNK_BYTES
        data = os.pread(self._read, limit, self._position)
        self._position += len(data)
        return data

    def _show(self, data: bytes) -> None:
        """Write to the screen; above a live line only whole lines can be placed."""
        data, self._partial = self._partial + data, b""
        if self._live:
            data, newline, self._partial = data.rpartition(b"\n")
            if newline:
                self._live.console.out(data.decode("utf-8", "replace"), highlight=False)
            return
        try:
            while data:
                data = data[os.write(self.file.fileno(), data) :]
        except OSError:  # whoever read our output is gone; the log goes on
            pass


def _free_bytes(descriptor: int) -> int:
    """Free space where an open file lies."""
    status = os.fstatvfs(descriptor)
    return status.f_bavail * status.f_frsize


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _line_buffering(wanted: bool) -> bool:
    """Set line buffering of sys.stdout, so that lines reach the log as they are printed; returns what it was."""
    stream: TextIO = sys.stdout
    was = bool(getattr(stream, "line_buffering", True))
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(line_buffering=wanted)
    return was
