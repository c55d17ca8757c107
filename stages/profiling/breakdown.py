"""Where the seconds of a step go: by phase, from the ranges that `fit` marks, and by operator."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer", "other")

Event = dict[str, Any]  # of a Chrome trace: name, cat, ts and dur in microseconds, args
Interval = tuple[float, float]  # start and end, microseconds
_DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}


@dataclass(frozen=True, slots=True)
class Breakdown:
    """A mean recorded step. `phases` are seconds by PHASES and sum to `seconds`; `device_idle_seconds` is None on the CPU."""

    steps: int
    seconds: float
    phases: dict[str, float]
    device_idle_seconds: float | None


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator in a mean recorded step, without what it calls. `memory_bytes`: allocated less freed; None when memory was not recorded."""

    operator: str
    calls: float
    seconds: float
    share: float
    memory_bytes: float | None


def breakdown(events: Sequence[Event]) -> Breakdown:
    """Seconds by phase of the recorded steps in `events`; raises ValueError when there is none.

    On the CPU a phase is the time inside its ranges. On CUDA it is the time the device works on what was launched in its ranges, `data_wait` is the
    time the device stands idle while the host waits for data, and the rest of its idleness is in `other`.
    """
    windows = sorted(_interval(event) for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#"))
    if not windows:
        raise ValueError("the trace holds no ProfilerStep range: it was not recorded by profile, or was cut by hand")
    total = sum(end - start for start, end in windows)
    ranges = sorted((*_interval(event), event["name"]) for event in events if event.get("cat") == "user_annotation" and event["name"] in PHASES)
    work = _device_work(events)
    if work:
        busy = _device_phases(events, work, ranges)
        idle = _gaps(windows, _union((start, end) for start, end, _ in work))
        busy["data_wait"] += _overlap(idle, [(start, end) for start, end, name in ranges if name == "data_wait"])
    else:
        busy = {phase: _overlap(windows, [(start, end) for start, end, name in ranges if name == phase]) for phase in PHASES}
        idle = []
    busy["other"] = total - sum(busy[phase] for phase in PHASES if phase != "other")
    scale = 1e-6 / len(windows)
    idle_seconds = _length(idle) * scale if work else None
    return Breakdown(len(windows), total * scale, {phase: busy[phase] * scale for phase in PHASES}, idle_seconds)


def operators(averages: Iterable[Any], steps: int, top: int, *, memory: bool) -> list[Operator]:
    """The `top` operators by their own seconds, device seconds where there are any, from torch's `key_averages()` over `steps` steps."""
    rows = [row for row in averages if row.device_type.name == "CPU" and not row.is_user_annotation and not _is_range(row.key)]
    device = sum(row.self_device_time_total for row in rows) > 0
    times = {row.key: (row.self_device_time_total if device else row.self_cpu_time_total) * 1e-6 / steps for row in rows}
    total = sum(times.values()) or 1.0
    rows.sort(key=lambda row: times[row.key], reverse=True)

    def held(row: Any) -> float | None:
        return (row.self_device_memory_usage if device else row.self_cpu_memory_usage) / steps if memory else None

    return [Operator(row.key, row.count / steps, times[row.key], times[row.key] / total, held(row)) for row in rows[:top]]


def _is_range(name: str) -> bool:
    return name in PHASES or name == "[memory]" or name.startswith(("ProfilerStep", "Optimizer.", "enumerate(DataLoader)"))


def _interval(event: Event) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _device_work(events: Sequence[Event]) -> list[tuple[float, float, int]]:
    """Start, end and correlation of everything that ran on the device, in order of start."""
    return sorted((*_interval(event), event["args"].get("correlation", -1)) for event in events if event.get("cat") in _DEVICE_WORK)


def _device_phases(events: Sequence[Event], work: list[tuple[float, float, int]], ranges: list[tuple[float, float, str]]) -> dict[str, float]:
    """Microseconds the device works for each phase; work belongs to the range in which it was launched, from whatever thread."""
    launched = {
        event["args"]["correlation"]: event["ts"] for event in events if event.get("cat") in {"cuda_runtime", "cuda_driver"} and "correlation" in event["args"]
    }
    starts = [start for start, _, _ in ranges]
    busy, reached = dict.fromkeys(PHASES, 0.0), float("-inf")
    for start, end, correlation in work:
        index = bisect_right(starts, launched.get(correlation, float("-inf"))) - 1
        phase = ranges[index][2] if index >= 0 and launched[correlation] <= ranges[index][1] else "other"
        busy[phase] += max(end - max(start, reached), 0.0)  # what runs side by side counts once
        reached = max(reached, end)
    return busy


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals that cover the same time; `intervals` in order of start."""
    merged: list[Interval] = []
    for start, end in intervals:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _gaps(windows: Sequence[Interval], covered: Sequence[Interval]) -> list[Interval]:
    """The parts of `windows` outside of `covered`, which is disjoint and in order."""
    gaps: list[Interval] = []
    for start, end in windows:
        for begin, finish in covered:
            if begin < end and finish > start:
                if begin > start:
                    gaps.append((start, begin))
                start = max(start, finish)
        if start < end:
            gaps.append((start, end))
    return gaps


def _overlap(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Microseconds that lie in both; each is disjoint and in order."""
    shared, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        shared += max(min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]), 0.0)
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
