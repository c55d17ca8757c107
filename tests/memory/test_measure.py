"""The measured figures against planted bytes."""

import gc
import gzip
import json
import multiprocessing
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from stages.memory import measure
from stages.memory.measure import MemoryWatch, allocator_peak, held_bytes, trace_events

MIB = 2**20
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")


def planted(mib: int) -> torch.Tensor:
    return torch.ones(mib * MIB // 4)


@pytest.fixture(params=["high-water mark", "sampled"])
def watch(request, monkeypatch):
    if request.param == "sampled":  # as in a sandbox that forbids the reset
        monkeypatch.setattr(measure, "_reset_high_water", lambda: False)
    gc.collect()
    with MemoryWatch("cpu") as made:
        yield made


@linux_only
def test_peak_sees_an_allocation_that_is_gone(watch):
    block = planted(200)
    time.sleep(0.1)
    del block
    assert watch.peak_bytes() == pytest.approx(200 * MIB, rel=0.1)
    assert watch.current_bytes() < 50 * MIB


@linux_only
def test_level_before_the_watch_does_not_count():
    before = planted(200)
    with MemoryWatch("cpu") as watch:
        block = planted(100)
        assert watch.current_bytes() == pytest.approx(100 * MIB, rel=0.1)
        assert watch.peak_bytes() == pytest.approx(100 * MIB, rel=0.1)
    assert before.numel() and block.numel()


def hold(mib: int, ready, done) -> None:
    block = bytearray(b"x" * (mib * MIB))
    ready.set()
    done.wait(60)
    assert block


@linux_only
def test_workers_count_what_they_alone_hold():
    context = multiprocessing.get_context("fork")
    ours = planted(300)  # a forked worker shares it: counted once, before the watch
    ready, done = context.Event(), context.Event()
    with MemoryWatch("cpu") as watch:
        worker = context.Process(target=hold, args=(100, ready, done))
        worker.start()
        assert ready.wait(60)
        peak = watch.peak_bytes()
        done.set()
        worker.join()
        assert 95 * MIB < peak < 150 * MIB and ours.numel()
        assert watch.peak_bytes() >= peak  # a worker that is gone stays in the peak


@linux_only
def test_current_bytes_is_cheap_enough_for_every_step():
    with MemoryWatch("cpu") as watch:
        started = time.perf_counter()
        for _ in range(200):
            watch.current_bytes()
        assert (time.perf_counter() - started) / 200 < 0.002


def test_what_cannot_be_measured_is_none_and_says_so(monkeypatch):
    monkeypatch.setattr(measure, "_PROC", Path("/nowhere"))
    with MemoryWatch("cpu") as watch:
        assert watch.current_bytes() is None and watch.peak_bytes() is None and watch.allocator_peak_bytes() is None
        assert "not measured" in watch.note


def test_cpu_has_no_allocator_peak_of_its_own():
    with MemoryWatch("cpu") as watch:
        assert watch.allocator_peak_bytes() is None


def test_allocator_peak_sees_planted_tensor_bytes_exactly(tmp_path):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        small = torch.empty(1000)
        large = torch.empty(1000, 1000)
        del large
        later = torch.empty(500)
        del small, later
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress((tmp_path / "trace.json").read_bytes()))
    sources = [tmp_path / "trace.json", tmp_path / "trace.json.gz"]
    for source in sources:
        assert allocator_peak(trace_events(source)) == 4_004_000
        assert allocator_peak(trace_events(source), held=96) == 4_004_096


def test_allocator_peak_of_a_second_profile_starts_from_zero():
    peaks = []
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            kept = torch.empty(10_000)
        peaks.append(allocator_peak(trace_events(recorded)))
        del kept  # unseen by the profiler
    assert peaks == [40_000, 40_000]


def test_allocator_peak_without_memory_events_is_none(tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [{"name": "aten::mm", "ph": "X", "ts": 1.0, "dur": 1.0}]}))
    assert allocator_peak(trace_events(trace)) is None


def test_held_bytes_counts_storages_once():
    first, second = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    assert held_bytes(model, optimizer) == 8 * 8 * 4
    model(torch.ones(1, 8)).sum().backward()
    assert held_bytes(model, optimizer) == 2 * 8 * 8 * 4  # and the gradient
    optimizer.step()
    optimizer.zero_grad()
    assert held_bytes(model, optimizer) == 3 * 8 * 8 * 4 + 4  # weights, two moments, the step count
