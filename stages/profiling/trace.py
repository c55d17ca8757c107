"""Rides on `fit`'s hook: times steps without the profiler, then records as many with it, and writes a trace of bounded size."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from stages.memory.measure import held_bytes, trace_events
from stages.params import Profile
from stages.training.step import Step

_SETTLING_STEPS = 1  # the profiler's own warm-up: its first step is slower and thrown away


@dataclass(slots=True)
class Timing:
    """Consecutive steps by the wall clock; `seconds` is of all of them, with the device's work finished. On CUDA `step_seconds` are the device's."""

    steps: int = 0
    tokens: int = 0
    predicted: int = 0
    seconds: float = 0.0
    step_seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def add(self, step: Step) -> None:
        self.steps += 1
        self.tokens += step.tokens
        self.predicted += step.predicted
        self.step_seconds.append(step.seconds)


def total_steps(params: Profile) -> int:
    """How long the fit must last that a StepProfiler rides on."""
    return params.warmup_steps + 2 * params.steps + _SETTLING_STEPS


class StepProfiler:
    """An `on_step` for `fit` that goes through: `warmup_steps`, `steps` timed without the profiler, one for it to settle, `steps` recorded.

    The fit must last `total_steps(params)`. `on_timed` is called when the un-profiled steps are over: the moment to read what the profiler would distort.
    Use as a context, which ends the recording whatever happens; afterwards `plain` and `profiled` hold the times, `events` the trace's events,
    `operators` torch's averages over them, `held_bytes` the tensor bytes live when recording began, `file` the trace as torch wrote it (uncompressed,
    gone when the context ends).
    """

    def __init__(self, params: Profile, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, *, on_timed: Callable[[], None]) -> None:
        self.plain, self.profiled = Timing(), Timing()
        self.held_bytes = 0
        self.events: list[dict[str, Any]] = []
        self.operators: Any = None
        self.total_steps = total_steps(params)
        self._params, self._model, self._optimizer, self._device, self._on_timed = params, model, optimizer, device, on_timed
        self._folder = tempfile.TemporaryDirectory(prefix="trace-")
        self.file = Path(self._folder.name) / "trace.json"
        self._profiler = self._make_profiler()
        self._running, self._started, self._marks = False, 0.0, list[torch.cuda.Event]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._running:
            self._profiler.stop()
        self._folder.cleanup()

    def __call__(self, step: Step) -> None:
        timed_from, settling_from = self._params.warmup_steps, self._params.warmup_steps + self._params.steps
        recorded_from = settling_from + _SETTLING_STEPS
        for timing, first in ((self.plain, timed_from), (self.profiled, recorded_from)):
            if first < step.index <= first + self._params.steps:
                timing.add(step)
                self._mark()
        if step.index == timed_from:
            self._start_clock()
        elif step.index == settling_from:
            self._stop_clock(self.plain)
            self._on_timed()
            self._running = True
            self._profiler.start()
        elif step.index == recorded_from:
            self.held_bytes = held_bytes(self._model, self._optimizer)
            self._start_clock()
            self._profiler.step()
        elif step.index > recorded_from:
            if step.index == self.total_steps:
                self._stop_clock(self.profiled)
            self._profiler.step()

    def _make_profiler(self) -> profile:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        return profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=_SETTLING_STEPS, active=self._params.steps, repeat=1),
            on_trace_ready=self._collect,
            record_shapes=self._params.record_shapes,
            profile_memory=self._params.profile_memory,
            with_stack=self._params.with_stack,
        )

    def _collect(self, finished: profile) -> None:
        self._running = False
        finished.export_chrome_trace(str(self.file))
        self.events = trace_events(self.file)
        self.operators = finished.key_averages()

    def _start_clock(self) -> None:
        self._synchronize()
        self._started, self._marks = time.perf_counter(), []
        self._mark()

    def _stop_clock(self, timing: Timing) -> None:
        self._synchronize()
        timing.seconds = time.perf_counter() - self._started
        if self._marks:
            timing.step_seconds = [begin.elapsed_time(end) * 1e-3 for begin, end in pairwise(self._marks)]

    def _mark(self) -> None:
        """On CUDA the host runs ahead, so the device itself notes when a step is over."""
        if self._device.type == "cuda":
            self._marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._marks[-1].record()

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
