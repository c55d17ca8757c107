"""Which process is which: an identity that a recycled process id cannot fake, and the DVC command above this one."""

import hashlib
import os
import socket
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]


def identity(process_id: int | None = None) -> str:
    """`host:process id:start` of a living process, of this one by default; raises ProcessLookupError when there is none."""
    process_id = os.getpid() if process_id is None else process_id
    return f"{socket.gethostname()}:{process_id}:{_start(process_id)}"


def alive(name: str) -> bool:
    """Whether the process that `identity` named still runs; one of another machine is taken to."""
    host, _, rest = name.rpartition(":")[0].rpartition(":")
    if not rest.isdigit():
        return False
    if host != socket.gethostname():
        return True
    try:
        return identity(int(rest)) == name
    except ProcessLookupError:
        return False


def short(name: str) -> str:
    """An identity as part of a file's name."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _start(process_id: int) -> int:
    """Start of a process, in an unchanging unit: clock ticks since boot on Linux (a wall clock may be set), else milliseconds."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        if fields[0] in "ZX":  # dead, not yet buried by its parent
            raise ProcessLookupError(process_id)
        return int(fields[19])
    except FileNotFoundError:
        pass
    try:
        process = psutil.Process(process_id)
        if process.status() == psutil.STATUS_ZOMBIE:
            raise ProcessLookupError(process_id)
        return int(process.create_time() * 1000)
    except psutil.Error:
        raise ProcessLookupError(process_id) from None


def started(name: str = "") -> float:
    """When a process began that `identity` named, this one by default: in seconds of time.time(); now, when it is gone or elsewhere."""
    if not name:
        return float(psutil.Process().create_time())
    return float(psutil.Process(int(name.split(":")[-2])).create_time()) if alive(name) and name.startswith(socket.gethostname()) else time.time()


def dvc_command() -> str:
    """Identity of the DVC process that runs this stage: the stages of one `dvc repro` share it. Empty without one."""
    parent = psutil.Process().parent()
    while parent is not None:
        try:
            if "dvc" in {Path(word).name for word in parent.cmdline()[:6]}:
                return identity(parent.pid)
            parent = parent.parent()
        except (psutil.Error, ProcessLookupError):  # it has just ended, or is not ours to look at
            return ""
    return ""
