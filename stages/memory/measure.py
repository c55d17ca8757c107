"""What memory a run really takes: live tensor bytes (`allocator_peak`) and what the device loses (`device_peak`), never mixed."""

import gzip
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

_PROC = Path("/proc/self")
_SAMPLE_SECONDS = 0.02  # where the kernel's own high-water mark cannot be reset
_WORKERS_SECONDS = 1.0  # reading the workers' memory maps costs milliseconds


class MemoryWatch:
    """Memory that `device` loses from now on; made before the model is built and after the heavy imports, whose memory is nobody's budget.

    `current_bytes()` is cheap enough for every logged step (microseconds), `peak_bytes()` is the run's `device_peak`. Both are None where the
    platform cannot measure them, never 0; `note` then says why.
    """

    note: str | None

    def __init__(self, device: torch.device | str) -> None:
        device = torch.device(device)
        self._meter: _CudaMeter | _ResidentMeter | _MpsMeter | None = None
        self.note = None
        if device.type == "cuda":
            self._meter = _CudaMeter(device)
        elif device.type == "mps":
            self._meter, self.note = _MpsMeter(), "peak memory is not measured on mps"
        elif resident_bytes() is not None:
            self._meter = _ResidentMeter()
        else:
            self.note = f"resident memory is not measured on {sys.platform}"

    def current_bytes(self) -> int | None:
        """Bytes of the device this run holds now. CPU: resident, above the level at the start, with the loader workers. CUDA: reserved and context."""
        return None if self._meter is None else self._meter.current_bytes()

    def peak_bytes(self) -> int | None:
        """`device_peak`: the most that `current_bytes` has been, at any moment."""
        return None if self._meter is None else self._meter.peak_bytes()

    def allocator_peak_bytes(self) -> int | None:
        """`allocator_peak`: live tensor bytes at the worst moment. CUDA only; on the CPU it takes a profiled step, see `allocator_peak`."""
        return self._meter.allocator_peak_bytes() if isinstance(self._meter, _CudaMeter) else None

    def close(self) -> None:
        """End the sampling, where there is any; the figures stay readable."""
        if isinstance(self._meter, _ResidentMeter):
            self._meter.close()

    def __enter__(self) -> "MemoryWatch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _CudaMeter:
    """Reserved bytes by the caching allocator's own counters, plus the context: what the device lost beyond them at the start.

    On a device shared with other processes their memory counts as context, since CUDA cannot tell them apart.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.empty(1, device=device)  # creates the context
        torch.cuda.reset_peak_memory_stats(device)
        free, total = torch.cuda.mem_get_info(device)
        self._context = max(total - free - torch.cuda.memory_reserved(device), 0)

    def current_bytes(self) -> int:
        return torch.cuda.memory_reserved(self._device) + self._context

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved(self._device) + self._context

    def allocator_peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)


class _MpsMeter:
    """Metal's driver tells the present level only."""

    def current_bytes(self) -> int:
        return torch.mps.driver_allocated_memory()

    def peak_bytes(self) -> None:
        return None


class _ResidentMeter:
    """Resident bytes of this process by the kernel's high-water mark, and of its workers by sampling, above their level at the start."""

    def __init__(self) -> None:
        self._exact = _reset_high_water()
        self._workers_peak = self._workers = worker_bytes()
        self._workers_read = time.monotonic()
        self._base = self._sampled_peak = (resident_bytes() or 0) + self._workers
        self._closed = threading.Event()
        if not self._exact:
            threading.Thread(target=self._sample, daemon=True, name="memory-watch").start()

    def current_bytes(self) -> int:
        if time.monotonic() - self._workers_read > _WORKERS_SECONDS:
            self._read_workers()
        return max((resident_bytes() or 0) + self._workers - self._base, 0)

    def peak_bytes(self) -> int:
        self._read_workers()
        process = _status_bytes("VmHWM") if self._exact else self._sampled_peak
        return max((process or 0) + self._workers_peak - self._base, 0)

    def close(self) -> None:
        self._closed.set()

    def _read_workers(self) -> None:
        self._workers, self._workers_read = worker_bytes(), time.monotonic()
        self._workers_peak = max(self._workers_peak, self._workers)

    def _sample(self) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            self._sampled_peak = max(self._sampled_peak, resident_bytes() or 0)


def resident_bytes() -> int | None:
    """Resident bytes of this process now; None where the system does not tell (macOS)."""
    try:
        return int((_PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def worker_bytes() -> int:
    """Bytes that only this process's `multiprocessing` children hold; pages they share with it are already its own."""
    return sum(_private_bytes(child.pid) for child in multiprocessing.active_children() if child.pid)


def _private_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it ended meanwhile
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def _status_bytes(key: str) -> int | None:
    for line in (_PROC / "status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return None


def _reset_high_water() -> bool:
    """Set VmHWM back to the present level; False where the kernel does not let us."""
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return False
    high, now = _status_bytes("VmHWM"), _status_bytes("VmRSS")
    return high is not None and now is not None and high - now < 8 * 2**20  # some sandboxes accept the write and do nothing


def trace_events(trace: "Path | torch.profiler.profile") -> list[dict[str, Any]]:
    """The events of a Chrome trace: of a file, gzipped or not, or of a finished profiler."""
    if not isinstance(trace, Path):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            trace.export_chrome_trace(str(file))
            return trace_events(file)
    with gzip.open(trace, "rt", encoding="utf-8") if trace.suffix == ".gz" else trace.open(encoding="utf-8") as lines:
        events: list[dict[str, Any]] = json.load(lines)["traceEvents"]
    return events


def allocator_peak(events: Iterable[dict[str, Any]], held: int = 0, device_type: int = 0) -> int | None:
    """`allocator_peak` of profiled steps, in bytes, from their `[memory]` events (`profile_memory=True`); None when there are none.

    `held`: tensor bytes that were live when the profiler started, which it has not seen (`held_bytes`). `device_type`: 0 CPU, 1 CUDA.
    """
    memory = [event for event in events if event.get("name") == "[memory]" and event["args"]["Device Type"] == device_type]
    if not memory:
        return None
    memory.sort(key=lambda event: event["ts"])
    first = memory[0]["args"]
    base = first["Total Allocated"] - first["Bytes"]
    return int(held + max(0, *(event["args"]["Total Allocated"] - base for event in memory)))


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Bytes of the distinct storages of parameters, buffers, gradients and optimizer state; tied weights count once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(model, optimizer)}
    return sum(storages.values())


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()
    for state in optimizer.state.values() if optimizer is not None else ():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
