"""Everything that profiling measures in one run of `fit`, as plain facts to write down and to reason about."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stages.memory.measure import MemoryWatch, allocator_peak
from stages.profiling.breakdown import Breakdown, Operator, breakdown, operators
from stages.profiling.cut import TraceFile, write_trace
from stages.profiling.throughput import ModelFlops, large_matmul_rate, model_flops, model_matmul_rate
from stages.profiling.trace import StepProfiler, Timing, total_steps
from stages.training.length import Length
from stages.training.setup import Setup
from stages.training.step import OnStep, Step

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Machine:
    """FLOP/s of matrix products in the run's precision: a large square one, and the model's own shapes back to back."""

    large: float
    model_shapes: float

    @property
    def best(self) -> float:
        return max(self.large, self.model_shapes)


@dataclass(frozen=True, slots=True)
class Facts:
    """What one profiled `fit` came to. `plain` steps ran without the profiler and count for speed; `profiled` ones tell where the time goes.

    Peaks are bytes as `memory/measure.py` defines them, None where they could not be measured.
    """

    device: str
    precision: str
    plain: Timing
    profiled: Timing
    breakdown: Breakdown
    operators: list[Operator]
    flops: ModelFlops
    machine: Machine
    allocator_peak_bytes: int | None
    device_peak_bytes: int | None
    trace: TraceFile

    @property
    def model_flops_per_second(self) -> float:
        return self.flops.per_token * self.plain.tokens_per_second

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: the share that training reaches of the machine's better rate, as a rule the large product's."""
        return self.model_flops_per_second / self.machine.best

    @property
    def device_unseen(self) -> bool:
        """Whether the profiler recorded nothing of a device that works on its own: `breakdown` then tells the host's time."""
        return self.device.startswith("cuda") and self.breakdown.device_idle_seconds is None

    def report(self) -> dict[str, Any]:
        """The figures for reports/profile.json, units in their names."""
        return {
            "tokens_per_second": self.plain.tokens_per_second,
            "step_seconds": self.plain.seconds / self.plain.steps,
            "step_seconds_min": min(self.plain.step_seconds),
            "step_seconds_max": max(self.plain.step_seconds),
            "steps": self.plain.steps,
            "mfu": self.mfu,
            "mfu_model_shapes": self.model_flops_per_second / self.machine.model_shapes,
            "model_flops_per_token": self.flops.per_token,
            "model_flops_per_second": self.model_flops_per_second,
            "matmul_flops_per_second": asdict(self.machine),
            "allocator_peak_bytes": self.allocator_peak_bytes,
            "device_peak_bytes": self.device_peak_bytes,
            "phase_seconds": self.breakdown.phases,
            "profiled_step_seconds": self.breakdown.seconds,
            "profiled_tokens_per_second": self.profiled.tokens_per_second,
            "profiler_overhead": self.plain.tokens_per_second / self.profiled.tokens_per_second - 1,
            **({} if self.breakdown.device_idle_seconds is None else {"device_idle_seconds": self.breakdown.device_idle_seconds}),
            "trace_bytes": self.trace.bytes,
            "trace_steps": self.trace.steps,
            "device": self.device,
            "precision": self.precision,
        }


def gather(setup: Setup, watch: MemoryWatch, trace: Path, on_step: OnStep = lambda step: None) -> Facts:
    """Run `fit` for `total_steps(setup.params.profile)` steps and write the trace to the file `trace`.

    `watch` was made before the model was built; it is read, like the machine's matmul rate, before the profiler starts.
    """
    params, peaks, rates = setup.params.profile, dict[str, int | None](), list[Machine]()

    def before_profiler() -> None:
        peaks.update(allocator=watch.allocator_peak_bytes(), device=watch.peak_bytes())
        rates.append(_machine(setup))

    with StepProfiler(params, setup.model, setup.optimizer, setup.device, on_timed=before_profiler) as profiler:

        def both(step: Step) -> None:
            on_step(step)
            profiler(step)

        setup.fit(on_step=both, length=Length("steps", total_steps(params)))
        written = write_trace(profiler.file, trace, steps=params.steps, max_bytes=params.max_trace_size)
    (machine,) = rates
    on_cpu = setup.device.type == "cpu"
    return Facts(
        device=str(setup.device),
        precision=setup.precision.name,
        plain=profiler.plain,
        profiled=profiler.profiled,
        breakdown=breakdown(profiler.events),
        operators=operators(profiler.operators, params.steps, params.top_operators, memory=params.profile_memory),
        flops=_flops(setup, profiler.plain),
        machine=machine,
        allocator_peak_bytes=allocator_peak(profiler.events, profiler.held_bytes) if on_cpu else peaks["allocator"],
        device_peak_bytes=peaks["device"],
        trace=written,
    )


def _machine(setup: Setup) -> Machine:
    dtype, device = _DTYPES[setup.precision.name], setup.device
    tokens = setup.params.train.batch_size * setup.params.model.sequence_length
    return Machine(large_matmul_rate(dtype=dtype, device=device), model_matmul_rate(setup.model, tokens, dtype=dtype, device=device))


def _flops(setup: Setup, timing: Timing) -> ModelFlops:
    model = setup.params.model
    return model_flops(setup.model, model.sequence_length, causal=model.objective == "causal", predicted_share=timing.predicted / timing.tokens)
