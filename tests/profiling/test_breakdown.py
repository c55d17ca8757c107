"""Phases and operators against steps whose times were planted."""

import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from stages.profiling.breakdown import PHASES, breakdown, operators
from stages.profiling.trace import StepProfiler
from stages.training.fit import fit
from stages.training.length import Length


def profiled(setup, batches=None, **arguments):
    with StepProfiler(setup.params.profile, setup.model, setup.optimizer, setup.device, on_timed=lambda: None) as profiler:
        length = Length("steps", profiler.total_steps)
        fit(setup.model, batches or setup.batches(), setup.optimizer, length=length, learning_rate=setup.learning_rate, on_step=profiler, **arguments)
    return profiler


def slowly(batches, seconds):
    for batch in batches:
        time.sleep(seconds)
        yield batch


PLANTED_SECONDS = 0.3  # far above what a step of this size takes on a busy machine


def test_a_slow_iterator_shows_as_data_wait(make_setup):
    setup = make_setup()
    slow = breakdown(profiled(setup, slowly(setup.batches(), PLANTED_SECONDS)).events)
    fast = breakdown(profiled(setup).events)
    assert slow.phases["data_wait"] >= PLANTED_SECONDS
    assert max(slow.phases, key=slow.phases.get) == "data_wait"
    assert fast.phases["data_wait"] < PLANTED_SECONDS


@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_planted_work_shows_in_its_phase(make_setup, phase):
    setup = make_setup()
    if phase == "forward":
        setup.model.register_forward_pre_hook(lambda *_: time.sleep(PLANTED_SECONDS))
    else:
        setup.optimizer.register_step_pre_hook(lambda *_: time.sleep(PLANTED_SECONDS))
    found = breakdown(profiled(setup).events)
    assert found.phases[phase] >= PLANTED_SECONDS
    assert max(found.phases, key=found.phases.get) == phase


@pytest.mark.parametrize("accumulation", [1, 3])
def test_phases_sum_to_the_step_and_the_step_to_the_wall_clock(make_setup, accumulation):
    setup = make_setup()
    profiler = profiled(setup, slowly(setup.batches(), 0.005), accumulation=accumulation)
    found = breakdown(profiler.events)
    assert found.steps == 3
    assert tuple(found.phases) == PHASES
    assert all(seconds >= 0 for seconds in found.phases.values())
    assert sum(found.phases.values()) == pytest.approx(found.seconds, rel=1e-9)
    assert found.seconds * found.steps == pytest.approx(profiler.profiled.seconds, rel=0.15)
    assert found.phases["other"] < 0.3 * found.seconds
    assert found.device_idle_seconds is None


def event(name: str, start: float, end: float, cat: str = "user_annotation", **args):
    return {"ph": "X", "name": name, "cat": cat, "ts": start, "dur": end - start, "args": args}


def launch(start: float, correlation: int, cat: str = "cuda_runtime"):
    return event("cudaLaunchKernel", start, start + 1, cat, correlation=correlation)


def kernel(start: float, end: float, correlation: int, cat: str = "kernel"):
    return event("gemm", start, end, cat, correlation=correlation)


CUDA_STEP = [  # the host runs ahead: the device works on a phase after the host has left it
    event("ProfilerStep#5", 0, 1000),
    event("data_wait", 0, 200),
    event("host_to_device", 200, 210),
    event("forward", 210, 300),
    event("backward", 300, 400),
    event("optimizer", 400, 450),
    event("forward", 210, 690, "gpu_user_annotation"),  # torch draws the ranges on the device's track too
    *(launch(start, number) for number, start in enumerate([205, 220, 230, 310, 410, 600])),
    launch(320, 6, "cuda_driver"),
    kernel(210, 230, 0, "gpu_memcpy"),
    kernel(230, 430, 1),
    kernel(400, 500, 2),  # on another stream, 30 of its 100 beside the kernel before
    kernel(500, 700, 3),
    kernel(700, 750, 6, "gpu_memset"),
    kernel(750, 800, 4),
    kernel(850, 860, 5),  # launched outside of every range
]


def test_on_cuda_a_phase_is_the_devices_time_for_it():
    found = breakdown(CUDA_STEP)
    microseconds = {phase: round(seconds * 1e6, 3) for phase, seconds in found.phases.items()}
    assert microseconds == {"data_wait": 200, "host_to_device": 20, "forward": 270, "backward": 250, "optimizer": 50, "other": 210}
    assert found.seconds == pytest.approx(1000e-6)
    assert found.device_idle_seconds == pytest.approx((210 + 50 + 140) * 1e-6)


def test_on_cuda_waiting_for_data_costs_nothing_while_the_device_works():
    busy = [launch(-9, 9), kernel(2, 150, 9), *CUDA_STEP]  # left over from the step before
    assert breakdown(busy).phases["data_wait"] == pytest.approx((2 + 50) * 1e-6)


def test_mean_over_steps():
    later = [{**one, "ts": one["ts"] + 1000, "args": {key: value + 100 for key, value in one["args"].items()}} for one in CUDA_STEP]
    assert breakdown(CUDA_STEP + later).phases == pytest.approx(breakdown(CUDA_STEP).phases)


def test_a_trace_without_steps_is_refused():
    with pytest.raises(ValueError, match="no ProfilerStep"):
        breakdown([event("forward", 0, 1)])


def test_operators_of_a_known_program():
    left = torch.randn(300, 300)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        for _ in range(4):
            with torch.profiler.record_function("forward"):
                (left @ left).add_(1)
    rows = operators(recorded.key_averages(), 2, 100, memory=True)
    by_name = {row.operator: row for row in rows}
    assert by_name["aten::mm"].calls == 2
    assert by_name["aten::mm"].memory_bytes == 2 * 300 * 300 * 4
    assert by_name["aten::mm"].seconds > by_name["aten::add_"].seconds > 0
    assert rows == sorted(rows, key=lambda row: -row.seconds)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert not {"forward", "[memory]"} & by_name.keys()
    assert [row.operator for row in operators(recorded.key_averages(), 2, 1, memory=False)] == ["aten::mm"]
    assert operators(recorded.key_averages(), 2, 1, memory=False)[0].memory_bytes is None
