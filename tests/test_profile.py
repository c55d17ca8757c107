"""The stage from end to end in a folder of its own: its files, its figures, its words."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages.profiling.breakdown import PHASES, breakdown
from stages.tracking.curves import read
from tests.profiling.made import tiny_params, write_tokens

ROOT = Path(__file__).parent.parent


def profile(folder: Path, **changes) -> subprocess.CompletedProcess[str]:
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(tiny_params(**changes).model_dump(mode="json"), file)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    command = [sys.executable, "-m", "stages.profile"]
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A profiled training: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("profile")
    write_tokens(folder / "data" / "tokens")
    result = profile(folder)
    assert result.returncode == 0, result.stdout
    return folder, result.stdout


def test_report(done):
    report = json.loads((done[0] / "reports" / "profile.json").read_text("utf-8"))
    assert report["tokens_per_second"] > 0
    assert 0 < report["mfu"] < 1
    assert report["allocator_peak_bytes"] > 0
    assert report["device_peak_bytes"] is None or report["device_peak_bytes"] > 0
    assert report["seconds"]["total"] > 0


def test_plots_hold_what_the_report_says(done):
    report = json.loads((done[0] / "reports" / "profile.json").read_text("utf-8"))
    phases = read(done[0] / "plots" / "phases.csv")
    assert tuple(phases["phase"]) == PHASES
    assert dict(zip(phases["phase"], phases["seconds"], strict=True)) == pytest.approx(report["phase_seconds"])
    operators = read(done[0] / "plots" / "operators.csv")
    assert len(operators["operator"]) == 5
    assert operators["seconds"] == sorted(operators["seconds"], reverse=True)


def test_trace_opens_in_a_viewer(done):
    with gzip.open(done[0] / "profile" / "trace.json.gz", "rt") as file:
        trace = json.load(file)
    assert breakdown(trace["traceEvents"]).steps == 3


def test_tensorboard_finds_figures_and_trace(done):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = done[0] / "tensorboard" / "profile"
    (trace,) = folder.glob("*.pt.trace.json.gz")  # the name that torch's plug-in looks for
    assert trace.read_bytes() == (done[0] / "profile" / "trace.json.gz").read_bytes()
    events = EventAccumulator(str(folder)).Reload()
    assert {f"step_seconds/{phase}" for phase in PHASES} | {"tokens_per_second", "mfu"} == set(events.Tags()["scalars"])


def test_a_newcomer_reads_what_each_figure_is(done):
    printed = done[1]
    for words in ["waiting for the next batch", "tokens/s", "model FLOPs utilization", "allocator_peak", "device_peak", "ui.perfetto.dev", "Model FLOPs count"]:
        assert words in printed
    for noise in ["USDT", "Warning", "Memory block of unknown size", "Traceback"]:
        assert noise not in printed


def test_missing_tokens_say_what_to_do(tmp_path):
    result = profile(tmp_path)
    assert result.returncode == 1
    assert "data/tokens/meta.json is missing; make it with `dvc repro tokenize`" in result.stdout
    assert "Traceback" not in result.stdout
