"""The profiler's ride on the real loop: what it times, what it records, what it leaves behind."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from stages.memory.measure import allocator_peak, held_bytes, trace_events
from stages.profiling.trace import StepProfiler
from stages.training.length import Length


def ride(setup, **changes):
    seen, timed = [], []
    with StepProfiler(setup.params.profile, setup.model, setup.optimizer, setup.device, on_timed=lambda: timed.append(len(seen))) as profiler:

        def on_step(step):
            seen.append(step)
            profiler(step)

        setup.fit(on_step=on_step, length=Length("steps", profiler.total_steps))
        assert profiler.file.is_file()
    assert not profiler.file.exists()
    return profiler, seen, timed


def test_warm_up_timed_settling_and_recorded_steps(make_setup):
    profiler, seen, timed = ride(make_setup())
    assert len(seen) == profiler.total_steps == 2 + 3 + 1 + 3
    assert timed == [5]  # after the un-profiled steps, before the profiler starts
    assert profiler.plain.step_seconds == [step.seconds for step in seen[2:5]]
    assert profiler.profiled.step_seconds == [step.seconds for step in seen[6:9]]
    assert profiler.plain.tokens == 3 * 4 * 16 == profiler.plain.predicted
    assert profiler.plain.seconds >= sum(profiler.plain.step_seconds) > 0
    assert profiler.plain.tokens_per_second == profiler.plain.tokens / profiler.plain.seconds


def test_trace_holds_the_recorded_steps_and_their_phases(make_setup):
    profiler, _, _ = ride(make_setup(train={"accumulation_steps": 2}))
    names = [event["name"] for event in profiler.events if event.get("cat") == "user_annotation"]
    assert len([name for name in names if name.startswith("ProfilerStep#")]) == 3
    counts = {name: names.count(name) for name in ("data_wait", "host_to_device", "forward", "backward", "optimizer")}
    assert counts == {"data_wait": 3, "host_to_device": 6, "forward": 6, "backward": 6, "optimizer": 3}


@pytest.mark.parametrize("setting", ["record_shapes", "profile_memory", "with_stack"])
def test_each_setting_adds_its_detail_and_only_then(make_setup, setting):
    detail = {
        "record_shapes": lambda event: "Input Dims" in event.get("args", {}),
        "profile_memory": lambda event: event["name"] == "[memory]",
        "with_stack": lambda event: event.get("cat") == "python_function",
    }
    off = dict.fromkeys(detail, False)
    profiler, _, _ = ride(make_setup(profile=off | {setting: True, "steps": 1}))
    assert {name: any(map(has, profiler.events)) for name, has in detail.items()} == off | {setting: True}


def test_profiling_does_not_change_the_training(make_setup, tmp_path):
    first = make_setup()
    ride(first)
    (tmp_path / "tokens").rename(tmp_path / "before")
    second = make_setup()
    second.fit(length=Length("steps", 9))
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("failing", [1, 7], ids=["before it records", "while it records"])
def test_a_failure_inside_leaves_no_profiler_behind(make_setup, failing):
    setup = make_setup()
    with (
        pytest.raises(KeyError),
        StepProfiler(setup.params.profile, setup.model, setup.optimizer, setup.device, on_timed=lambda: None) as profiler,
    ):

        def on_step(step):
            profiler(step)
            if step.index == failing:
                raise KeyError

        setup.fit(on_step=on_step, length=Length("steps", profiler.total_steps))
    assert not torch.autograd.profiler._is_profiler_enabled
    ride(setup)


def test_allocator_peak_of_a_few_steps_equals_that_of_the_whole_life(make_setup, tmp_path):
    profiler, _, _ = ride(make_setup())
    assert profiler.held_bytes > 0
    (tmp_path / "tokens").rename(tmp_path / "before")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as whole:  # from before the model exists: nothing is unseen
        setup = make_setup()
        setup.fit(length=Length("steps", 3))
        held = held_bytes(setup.model, setup.optimizer)
    assert held == profiler.held_bytes
    assert allocator_peak(profiler.events, profiler.held_bytes) == pytest.approx(allocator_peak(trace_events(whole)), rel=0.02)
