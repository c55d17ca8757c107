"""DVC stage `profile`: a dozen steps of the real training loop, and where their time and memory go. `python -m stages.profile`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stages.params import load
from stages.tracking.console import Progress, figure, size, table
from stages.tracking.curves import Curve
from stages.tracking.events import Events
from stages.tracking.run import stage

if TYPE_CHECKING:
    from stages.profiling.facts import Facts

TRACE = Path("profile/trace.json.gz")
TENSORBOARD = Path("tensorboard/profile")
PHASES, OPERATORS = Path("plots/phases.csv"), Path("plots/operators.csv")

MEANING = {
    "data_wait": "waiting for the next batch",
    "host_to_device": "copying the batch to the device",
    "forward": "computing the loss; in fp32 the chunked head computes its gradients here too",
    "backward": "computing the gradients",
    "optimizer": "clipping the gradients, updating the weights",
    "other": "everything else: the loop itself, the device standing idle",
}


def main() -> None:
    params = load()
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read when the profiler first starts: it would print its own life signs
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported: the profiler warns of tensors older than it
    with stage("profile", params.model_dump(mode="json"), experiment=params.tracking.experiment) as run:
        from stages.data.shards import read_meta

        meta = read_meta()  # what is missing is said before torch is imported
        from stages.memory.measure import MemoryWatch
        from stages.models import device
        from stages.profiling.facts import gather
        from stages.profiling.trace import total_steps
        from stages.training import setup

        with MemoryWatch(device.resolve(params.device)) as watch:
            prepared = setup.prepare(params, meta)
            with Progress("profile", total_steps(params.profile)) as progress:
                facts = gather(prepared, watch, TRACE, on_step=lambda step: progress.update(step.index))
        write(facts)
        run.report(facts.report())
        run.artifact(TRACE, "profile")
        show(facts)


def write(facts: "Facts") -> None:
    """The tables as CSV, and what TensorBoard can read."""
    with Curve(PHASES, ("phase", "seconds")) as curve:
        for phase, seconds in facts.breakdown.phases.items():
            curve.row(phase=phase, seconds=seconds)
    with Curve(OPERATORS, ("operator", "calls", "seconds", "share", "memory_bytes")) as curve:
        for row in facts.operators:
            curve.row(operator=row.operator, calls=row.calls, seconds=row.seconds, share=row.share, memory_bytes=row.memory_bytes)
    TENSORBOARD.mkdir(parents=True, exist_ok=True)
    (TENSORBOARD / "profile.pt.trace.json.gz").write_bytes(TRACE.read_bytes())  # where and how torch's TensorBoard plug-in looks for traces
    with Events(TENSORBOARD) as events:  # TensorBoard alone shows no trace, so it gets the figures
        events.scalars(0, {f"step_seconds/{phase}": seconds for phase, seconds in facts.breakdown.phases.items()})
        events.scalars(0, {"tokens_per_second": facts.plain.tokens_per_second, "mfu": facts.mfu})


def show(facts: "Facts") -> None:
    """What a person reads: where a step's time goes, the slowest operators, how near the machine's limit this is."""
    from stages.profiling.throughput import FORMULA

    whole = facts.breakdown.seconds
    phases = [(name, f"{seconds * 1e3:.1f}", f"{seconds / whole:.1%}", MEANING[name]) for name, seconds in facts.breakdown.phases.items()]
    table(f"Where a step's {whole * 1e3:.0f} ms go (under the profiler)", ("phase", "ms", "share", "what it is"), phases)
    slowest = [(row.operator, f"{row.calls:.0f}", f"{row.seconds * 1e3:.1f}", f"{row.share:.1%}") for row in facts.operators]
    table("Slowest operators, without what they call", ("operator", "calls a step", "ms a step", "share"), slowest)
    table("How fast, and how near the limit", ("figure", "value", "what it is"), _figures(facts))
    if facts.device_unseen:
        print("The profiler saw no work on the GPU (it may lack the right to: see NVIDIA's ERR_NVGPUCTRPERM), so the phases are the host's time.")
    print(f"Model FLOPs count {FORMULA}.")
    if facts.trace.cut:
        print(f"The trace was cut to {size(facts.trace.bytes)} (profile.max_trace_size), without {', '.join(facts.trace.cut)}.")
    print(f"Trace: {TRACE} ({facts.trace.steps} steps, {size(facts.trace.bytes)}); open it at https://ui.perfetto.dev")


def _figures(facts: "Facts") -> list[tuple[str, str, str]]:
    plain, slower = facts.plain, figure("tokens_per_second", facts.profiled.tokens_per_second)
    step_ms = [seconds * 1e3 for seconds in plain.step_seconds]
    rows = [
        ("speed", figure("tokens_per_second", plain.tokens_per_second), f"{plain.steps} steps without the profiler; with it: {slower}"),
        ("step", f"{1e3 * plain.seconds / plain.steps:.0f} ms", f"{min(step_ms):.0f} to {max(step_ms):.0f} ms"),
        ("arithmetic", f"{facts.model_flops_per_second / 1e9:.1f} GFLOP/s", f"{facts.flops.per_token / 1e6:.1f} MFLOP for each token"),
        ("machine", f"{facts.machine.large / 1e9:.1f} GFLOP/s", f"a large {facts.precision} matrix product, measured just now on {facts.device}"),
        ("own shapes", f"{facts.machine.model_shapes / 1e9:.1f} GFLOP/s", "this model's matrix products back to back: as far as its sizes allow"),
        ("MFU", f"{facts.mfu:.1%}", "model FLOPs utilization: arithmetic / the machine's better rate, large or own shapes"),
    ]
    for name, value, meaning in (
        ("live tensors", facts.allocator_peak_bytes, "allocator_peak: tensor bytes at the worst moment of a step"),
        ("memory", facts.device_peak_bytes, "device_peak: what the training takes from the device at most"),
    ):
        rows.append((name, "not measured" if value is None else size(value), meaning))
    return rows


if __name__ == "__main__":
    main()
