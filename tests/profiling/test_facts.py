"""All facts of one profiled training, and the figures made of them."""

import json

import pytest

from stages.memory.measure import MemoryWatch
from stages.profiling.breakdown import PHASES
from stages.profiling.facts import gather
from stages.profiling.throughput import model_flops


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {"objective": "masked", "architecture": "bert"}},
        {"train": {"precision": "bf16", "accumulation_steps": 2, "activation_checkpointing": "all"}},
        {"profile": {"profile_memory": False}},
    ],
    ids=["causal", "masked", "bf16, accumulated, checkpointed", "without memory"],
)
def test_facts(make_setup, tmp_path, changes):
    with MemoryWatch("cpu") as watch:
        setup = make_setup(**changes)
        facts = gather(setup, watch, tmp_path / "trace.json.gz")
    model, params = setup.params.model, setup.params.profile
    assert facts.plain.steps == facts.profiled.steps == facts.breakdown.steps == facts.trace.steps == params.steps
    assert facts.trace.bytes == (tmp_path / "trace.json.gz").stat().st_size
    assert len(facts.operators) == params.top_operators
    assert facts.precision == setup.precision.name == ("bf16" if "train" in changes else "fp32")
    share = facts.plain.predicted / facts.plain.tokens
    assert (share == 1) == (model.objective == "causal")
    assert facts.flops == model_flops(setup.model, 16, causal=model.objective == "causal", predicted_share=share)
    assert facts.mfu > 0
    assert facts.mfu == pytest.approx(facts.flops.per_token * facts.plain.tokens_per_second / max(facts.machine.large, facts.machine.model_shapes))
    assert (facts.allocator_peak_bytes is None) == (not params.profile_memory)
    assert facts.allocator_peak_bytes is None or facts.allocator_peak_bytes > sum(p.nbytes for p in setup.model.parameters())
    assert facts.device_peak_bytes is None or facts.device_peak_bytes >= 0  # this process has memory to spare from other tests
    assert not facts.device_unseen


def test_report_is_numbers_with_their_units(make_setup, tmp_path):
    with MemoryWatch("cpu") as watch:
        facts = gather(make_setup(), watch, tmp_path / "trace.json.gz")
    report = json.loads(json.dumps(facts.report(), allow_nan=False))
    assert tuple(report["phase_seconds"]) == PHASES
    assert sum(report["phase_seconds"].values()) == pytest.approx(report["profiled_step_seconds"])
    assert report["tokens_per_second"] == pytest.approx(4 * 16 / report["step_seconds"])
    assert report["step_seconds_min"] <= report["step_seconds"] * 1.01
    assert {"mfu", "model_flops_per_token", "allocator_peak_bytes", "device_peak_bytes", "profiler_overhead", "matmul_flops_per_second"} <= report.keys()
    assert isinstance(report["device"], str)
