"""One experiment, one row in MLflow, whole whatever DVC took from its cache."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.tiny import VERBS, Tiny, stages_of

CURVE = [(step, pytest.approx(0.2 / step)) for step in range(1, 21)]


def assert_whole(tiny: Tiny, run: Any) -> None:
    """Closed, with the figures of every stage and train's curve, each step once."""
    assert run.info.status == "FINISHED"
    assert {name.split(".")[0] for name in run.data.metrics} >= set(VERBS)
    assert tiny.history(run, "train.loss") == CURVE
    assert tiny.history(run, "train.validation_loss") == [(20, 0.5)]
    statuses = stages_of(run)
    assert statuses.pop("report") == "FINISHED"
    assert set(statuses) == set(VERBS)
    assert set(statuses.values()) <= {"FINISHED", "CACHED"}


def by_status(run: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for stage, status in stages_of(run).items():
        found.setdefault(status, set()).add(stage)
    return found


@pytest.mark.slow
def test_a_whole_run_is_one_row(ran: Tiny) -> None:
    (run,) = ran.rows()
    assert_whole(ran, run)
    assert by_status(run) == {"FINISHED": {*VERBS, "report"}}
    report = json.loads((ran.folder / "reports/report.json").read_text("utf-8"))
    assert run.data.tags["key"] == report["key"]
    assert run.info.run_name.endswith(report["key"][:6])
    assert run.data.params["train.learning_rate"] == "0.002"
    assert run.data.tags["mlflow.note.content"] == (ran.folder / "summary/summary.md").read_text("utf-8")


@pytest.mark.slow
def test_a_second_repro_runs_nothing(tiny: Tiny) -> None:
    assert "Running stage" not in tiny.dvc("repro")
    assert len(tiny.rows()) == 1


@pytest.mark.slow
def test_a_change_of_quantize_alone_and_back(tiny: Tiny) -> None:
    tiny.set("  decode_tokens: 64", "  decode_tokens: 32")
    tiny.dvc("repro")
    first, second = tiny.rows()
    assert_whole(tiny, second)
    assert by_status(second) == {"FINISHED": {"quantize", "report"}, "CACHED": {"tokenize", "train", "profile", "evaluate"}}
    assert second.data.metrics["quantize.decode_tokens"] == 32
    tiny.set("  decode_tokens: 32", "  decode_tokens: 64")
    tiny.dvc("repro")
    assert [run.info.run_id for run in tiny.rows()] == [first.info.run_id, second.info.run_id]


@pytest.mark.slow
def test_a_new_combination_of_cached_stages(tiny: Tiny) -> None:
    tiny.set("  decode_tokens: 64", "  decode_tokens: 32")
    tiny.dvc("repro")
    tiny.set("  batch_size: 16", "  batch_size: 4")
    tiny.dvc("repro")
    tiny.set("  decode_tokens: 32", "  decode_tokens: 64")
    printed = tiny.dvc("repro")
    assert "Running stage 'report'" in printed
    assert printed.count("Running stage") == 1
    run = tiny.rows()[-1]
    assert len(tiny.rows()) == 4
    assert_whole(tiny, run)
    assert by_status(run) == {"FINISHED": {"report"}, "CACHED": set(VERBS)}
    assert (run.data.metrics["quantize.decode_tokens"], run.data.metrics["evaluate.batch_size"]) == (64, 4)


@pytest.mark.slow
def test_a_forced_stage_is_a_second_attempt(tiny: Tiny) -> None:
    tiny.dvc("repro", "-f", "-s", "train")
    tiny.dvc("repro")
    first, second = tiny.rows()
    assert first.data.tags["key"] == second.data.tags["key"]
    assert second.info.run_name.endswith(f"-{first.data.tags['key'][:6]}-2")
    assert_whole(tiny, second)
    assert by_status(second)["FINISHED"] == {"train", "report"}


@pytest.mark.slow
def test_a_failing_stage_and_its_fix(tiny: Tiny) -> None:
    tiny.set("  learning_rate: 2e-3", "  learning_rate: 2")
    printed = tiny.dvc("repro", code=None)
    assert "train: train.learning_rate is 2.0: too large" in printed
    assert "Traceback" not in printed
    failed = tiny.rows()[-1]
    assert failed.info.status == "FAILED"
    assert "too large" in failed.data.tags["failure.train"]
    code = tiny.folder / "stages/train.py"
    code.write_text(code.read_text("utf-8").replace("learning_rate > 1:", "learning_rate > 9:"), "utf-8")
    tiny.dvc("repro")
    run = tiny.rows()[-1]
    assert len(tiny.rows()) == 3
    assert run.info.status == "FINISHED"
    assert by_status(run)["CACHED"] == {"tokenize"}
    assert stages_of(tiny.rows()[1])["train"] == "FAILED"


@pytest.mark.slow
def test_a_stage_that_failed_by_accident_goes_on_in_its_run(tiny: Tiny) -> None:
    tiny.set("  learning_rate: 2e-3", "  learning_rate: 4e-3")
    code = tiny.folder / "stages/tracking/curves.py"  # no dependency of any stage: the key stays
    text = code.read_text("utf-8")
    code.write_text(text + "\nraise OSError('no space')\n", "utf-8")
    tiny.dvc("repro", code=None)
    code.write_text(text, "utf-8")
    tiny.dvc("repro")
    _, run = tiny.rows()
    assert run.info.status == "FINISHED"
    assert tiny.history(run, "train.loss") == [(step, pytest.approx(0.4 / step)) for step in range(1, 21)]


@pytest.mark.slow
def test_a_comment_in_training_code(tiny: Tiny) -> None:
    code = tiny.folder / "stages/training/__init__.py"
    code.write_text("# a comment\n", "utf-8")
    tiny.dvc("repro")
    first, run = tiny.rows()
    assert first.data.tags["key"] != run.data.tags["key"]
    assert_whole(tiny, run)
    assert by_status(run) == {"FINISHED": {"train", "profile", "report"}, "CACHED": {"tokenize", "evaluate", "quantize"}}
    assert run.data.tags["dirty"] == "true"


@pytest.mark.slow
def test_a_parameter_edited_while_train_runs_is_refused(tiny: Tiny) -> None:
    before = (tiny.folder / "dvc.lock").read_bytes()
    tiny.set("  weight_decay: 0.1", "  weight_decay: 0.2")
    (tiny.folder / "plots/validation.csv").unlink()
    running = tiny.start("python", "-m", "dvc", "repro", TINY_SECONDS="4")
    wait_for(lambda: (tiny.folder / "plots/validation.csv").is_file() and "20" in (tiny.folder / "plots/validation.csv").read_text("utf-8"))
    tiny.set("  weight_decay: 0.2", "  weight_decay: 0.3")
    printed, _ = running.communicate(timeout=120)
    assert running.returncode != 0
    assert "params.yaml: train.weight_decay 0.2 -> 0.3" in flat(printed)
    assert (tiny.folder / "dvc.lock").read_bytes() == before
    assert tiny.rows()[-1].info.status == "FAILED"


def flat(text: str) -> str:
    return " ".join(text.split())


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code", "status"), [(signal.SIGINT, 130, "KILLED"), (signal.SIGTERM, 143, "KILLED"), (signal.SIGKILL, -9, "KILLED")])
def test_a_stage_that_is_stopped_ends_its_run_and_goes_on_in_it(tiny: Tiny, sent: signal.Signals, code: int, status: str) -> None:
    tiny.set("  learning_rate: 2e-3", "  learning_rate: 4e-3")
    curve = tiny.folder / "plots/validation.csv"
    curve.unlink()
    stopped = tiny.start("python", "-m", "stages.train", TINY_SECONDS="60")
    wait_for(lambda: curve.is_file() and "20" in curve.read_text("utf-8"))
    os.kill(stopped.pid, sent)
    stopped.communicate(timeout=60)
    assert stopped.returncode == code
    wait_for(lambda: len(tiny.rows()) == 2 and tiny.rows()[1].info.status == status)
    tiny.dvc("repro")
    _, run = tiny.rows()
    assert run.info.status == "FINISHED"
    assert [step for step, _ in tiny.history(run, "train.loss")] == list(range(1, 21))


@pytest.mark.slow
def test_exp_run(tiny: Tiny) -> None:
    tiny.dvc("exp", "run", "-n", "wide", "-S", "train.learning_rate=4e-3")
    _, run = tiny.rows()
    assert run.info.run_name == "wide"
    assert run.data.tags["dvc_experiment"] == "wide"
    assert run.info.status == "FINISHED"
    shown = json.loads(tiny.dvc("exp", "show", "--json"))
    assert run.data.tags["key"] in json.dumps(shown)


@pytest.mark.slow
def test_exp_run_with_everything_cached(tiny: Tiny) -> None:
    tiny.dvc("exp", "run", "-n", "same")
    (run,) = tiny.rows()
    assert_whole(tiny, run)


@pytest.mark.slow
def test_exp_run_temp_tells_the_parent_repository(tiny: Tiny) -> None:
    tiny.dvc("exp", "run", "--temp", "-n", "aside", "-S", "quantize.decode_tokens=16")
    _, run = tiny.rows()
    assert run.info.run_name == "aside"
    assert_whole(tiny, run)
    wait_for(lambda: not list((tiny.folder / ".underbudget/outbox").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_jobs_of_the_queue_at_once(tiny: Tiny) -> None:
    for rate in ("3e-3", "4e-3"):
        tiny.dvc("exp", "run", "--queue", "-n", f"rate-{rate[0]}", "-S", f"train.learning_rate={rate}")
    tiny.dvc("queue", "start", "-j", "2")
    wait_for(lambda: len([run for run in tiny.rows() if run.info.status == "FINISHED"]) == 3, seconds=900)
    runs = tiny.rows()[1:]
    assert {run.info.run_name for run in runs} == {"rate-3", "rate-4"}
    for run in runs:
        rate = float(run.data.params["train.learning_rate"])
        assert [value for _, value in tiny.history(run, "train.loss")] == [pytest.approx(rate * 100 / step) for step in range(1, 21)]
        assert by_status(run)["FINISHED"] >= {"train", "evaluate", "quantize", "report"}


@pytest.mark.slow
def test_a_clone_has_the_same_key(ran: Tiny, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(ran.folder), str(tmp_path / "clone")], check=True)
    clone = Tiny(tmp_path / "clone")
    clone.dvc("repro")
    (theirs,), (ours,) = ran.rows(), clone.rows()
    assert theirs.data.tags["key"] == ours.data.tags["key"]
