"""A Chrome trace, gzipped, no larger than allowed: whole steps are dropped first, then detail, and the file says what is missing."""

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_DETAIL = (  # what a trace of one step can do without, the least missed first
    ("Python stacks", lambda event: event.get("cat") == "python_function"),
    ("arguments of operators", None),
    ("memory events and arrows", lambda event: event.get("cat") in {"cpu_instant_event", "fwdbwd", "ac2g"}),
)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What was written: `bytes` on disk, recorded `steps` in it, and in `cut` what was left out, in words; empty when nothing was."""

    bytes: int
    steps: int
    cut: list[str] = field(default_factory=list)


def write_trace(source: Path, target: Path, *, steps: int, max_bytes: int) -> TraceFile:
    """Compress the trace `source` (JSON, of `steps` recorded steps) to `target` (.json.gz, replaced in one go), cut so that it fits into `max_bytes`.

    Raises ValueError when not even the phases of one step fit.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    with source.open("rb") as plain, gzip.open(partial, "wb", compresslevel=5) as packed:
        shutil.copyfileobj(plain, packed, 2**20)
    written = TraceFile(partial.stat().st_size, steps)
    if written.bytes > max_bytes:
        written = _write_cut(json.loads(source.read_bytes()), partial, written, max_bytes)
    partial.replace(target)
    return written


def _write_cut(trace: dict[str, Any], partial: Path, whole: TraceFile, max_bytes: int) -> TraceFile:
    for kept, cut, events in _smaller(trace["traceEvents"], whole, max_bytes):
        packed = gzip.compress(json.dumps({**trace, "cut": cut, "traceEvents": events}, separators=(",", ":")).encode(), compresslevel=5)
        if len(packed) <= max_bytes:
            partial.write_bytes(packed)
            return TraceFile(len(packed), kept, cut)
    partial.unlink()
    raise ValueError(f"profile.max_trace_size: {max_bytes} bytes cannot hold one step, whose phases alone need {len(packed)}; allow 1 MiB or more")


def _smaller(events: list[Event], whole: TraceFile, max_bytes: int) -> Iterator[tuple[int, list[str], list[Event]]]:
    """Ever smaller versions: fewer and fewer steps, then one step with less and less detail, at last its phases alone."""
    steps = whole.steps
    kept = max(1, min(steps - 1, int(0.95 * steps * max_bytes / whole.bytes)))
    while kept > 1:
        yield kept, [f"{steps - kept} of {steps} steps"], _first_steps(events, kept)
        kept = max(1, min(kept - 1, int(0.8 * kept)))
    cut = [f"{steps - 1} of {steps} steps"] if steps > 1 else []
    events = _first_steps(events, 1)
    yield 1, cut, events
    for name, drops in _DETAIL:
        cut = [*cut, name]
        events = [event for event in events if not drops(event)] if drops else [_without_arguments(event) for event in events]
        yield 1, cut, events
    for microseconds in (10, 100, 1000):
        events = [event for event in events if event.get("dur", 0) >= microseconds or event["ph"] == "M" or event.get("cat") == "user_annotation"]
        yield 1, [*cut, f"operators under {microseconds} microseconds"], events
    yield 1, [*cut, "operators"], [event for event in events if event.get("cat") == "user_annotation" or event["ph"] == "M"]


def _first_steps(events: list[Event], count: int) -> list[Event]:
    """What began before the step after the first `count` did, with everything that names processes and threads."""
    starts = _step_starts(events)
    end = starts[count] if count < len(starts) else float("inf")
    return [event for event in events if event["ph"] == "M" or event.get("ts", 0) < end]


def _step_starts(events: list[Event]) -> list[float]:
    return sorted(event["ts"] for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#"))


def _without_arguments(event: Event) -> Event:
    """Without what an operator was called with; what the viewer and the breakdown need stays."""
    keep = {key: value for key, value in event.get("args", {}).items() if key in {"correlation", "stream", "device"}}
    return event if event["ph"] == "M" or event.get("cat") in {"cpu_instant_event"} else {**event, "args": keep}
