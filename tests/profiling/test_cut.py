"""A trace under its cap stays a trace."""

import gzip
import json

import pytest

from stages.profiling.breakdown import breakdown
from stages.profiling.cut import write_trace
from stages.profiling.trace import StepProfiler
from stages.training.length import Length
from stages.training.setup import prepare
from tests.profiling.made import tiny_params, write_tokens


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace of six steps with everything in it, as torch wrote it."""
    folder = tmp_path_factory.mktemp("recorded")
    params = tiny_params(profile={"steps": 6, "record_shapes": True, "with_stack": True})
    setup = prepare(params, write_tokens(folder / "tokens"), folder / "tokens")
    with StepProfiler(setup.params.profile, setup.model, setup.optimizer, setup.device, on_timed=lambda: None) as profiler:
        setup.fit(on_step=profiler, length=Length("steps", profiler.total_steps))
        kept = folder / "kept.json"
        kept.write_bytes(profiler.file.read_bytes())
    return kept


def read(path):
    with gzip.open(path, "rt") as file:
        return json.load(file)


def test_a_trace_that_fits_is_whole(recorded, tmp_path):
    target = tmp_path / "profile" / "trace.json.gz"
    written = write_trace(recorded, target, steps=6, max_bytes=2**30)
    assert read(target) == json.loads(recorded.read_text())
    assert (written.bytes, written.steps, written.cut) == (target.stat().st_size, 6, [])


def test_whole_steps_go_first_then_detail(recorded, tmp_path):
    target = tmp_path / "trace.json.gz"
    whole = write_trace(recorded, target, steps=6, max_bytes=2**30).bytes
    caps = [int(whole * share) for share in (0.9, 0.6, 0.3, 0.1, 0.03, 0.01)]
    steps = []
    for cap in caps:
        written = write_trace(recorded, target, steps=6, max_bytes=cap)
        trace = read(target)
        steps.append(written.steps)
        assert written.bytes == target.stat().st_size <= cap
        assert trace["cut"] == written.cut
        assert written.cut[0] == f"{6 - written.steps} of 6 steps"
        found = breakdown(trace["traceEvents"])  # what is left is still readable
        assert found.steps == written.steps
        assert found.phases["forward"] > 0
        assert [path.name for path in tmp_path.glob("*.partial")] == []
    assert steps == sorted(steps, reverse=True)
    assert steps[0] >= 4
    assert steps[-1] == 1


def test_the_cut_uses_most_of_what_is_allowed(recorded, tmp_path):
    target = tmp_path / "trace.json.gz"
    whole = write_trace(recorded, target, steps=6, max_bytes=2**30).bytes
    assert write_trace(recorded, target, steps=6, max_bytes=whole // 2).bytes > whole // 4


def test_an_impossible_cap_is_refused_and_the_old_file_stays(recorded, tmp_path):
    target = tmp_path / "trace.json.gz"
    target.write_bytes(b"before")
    with pytest.raises(ValueError, match=r"profile.max_trace_size: 100 bytes cannot hold one step"):
        write_trace(recorded, target, steps=6, max_bytes=100)
    assert target.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.glob("trace*")) == ["trace.json.gz"]
