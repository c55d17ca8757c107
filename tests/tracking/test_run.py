"""What a stage tells MLflow arrives, and how it ends is what its run says: real processes, real signals, a real store."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.made import Family

TRAIN = 'with stage("train", {"seed": 1, "train": {"rate": 1e-5}}) as run:\n'
WAITS = TRAIN + '    run.point(1, {"loss": 2.0})\n    Path("ready").touch()\n    time.sleep(60)\n'


def only(runs: list[Any]) -> Any:
    (run,) = runs
    return run


def test_points_figures_and_files_arrive(family: Family) -> None:
    text = """
    for step in range(1, 501):
        run.point(step, {"loss": 1 / step, "norm": 2})
    Path("plots").mkdir()
    Path("plots/a.csv").write_text("1")
    run.artifact("plots")
    run.artifact(Path("plots/a.csv"), "data")
    Path("plots/a.csv").write_text("2")
    run.note("# Head")
    run.report({"loss": 0.5, "steps": 500, "nested": {"best": 0.25}, "name": "x", "seconds": {"training": 3.0}})
    print("hello from the stage")
"""
    assert family.run(TRAIN + text) == 0
    run = only(family.deliver())
    assert family.history(run, "train.loss") == [(step, 1 / step) for step in range(1, 501)]
    assert len(family.history(run, "train.norm")) == 500
    assert {"train.final_loss": 0.5, "train.steps": 500, "train.nested.best": 0.25, "train.seconds.training": 3.0}.items() <= run.data.metrics.items()
    report = json.loads((family.folder / "reports/train.json").read_text("utf-8"))
    assert {name: run.data.metrics[f"train.seconds.{name}"] for name in ("start", "tracking", "total")}.items() <= report["seconds"].items()
    assert run.data.params == {"seed": "1", "train.rate": "1e-05"}
    assert run.data.tags["mlflow.note.content"] == "# Head"
    assert run.info.status == "SCHEDULED"
    assert run.info.start_time <= 1000 * (family.folder / "reports/train.json").stat().st_mtime  # when the stage began, not when MLflow heard of it
    artifacts = family.artifacts(run)
    assert artifacts["plots/a.csv"] == artifacts["data/a.csv"] == "1"
    assert artifacts["logs/train.log"] == "hello from the stage\n"
    assert json.loads(artifacts["params.json"]) == {"seed": 1, "train": {"rate": 1e-5}}


ENDS = {
    "exception": ("    raise RuntimeError('broken')\n", 1, "FAILED", "RuntimeError: broken"),
    "user's fault": ("    raise ValueError('train.rate is 7: at most 1')\n", 1, "FAILED", "ValueError: train.rate is 7: at most 1"),
    "sys.exit(1)": ("    sys.exit(1)\n", 1, "FAILED", "exit code 1"),
    "sys.exit(text)": ("    sys.exit('no')\n", 1, "FAILED", "no"),
    "sys.exit(0)": ("    sys.exit(0)\n", 0, "SCHEDULED", None),
    "SIGINT": ("    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(9)\n", 130, "KILLED", "SIGINT"),
    "SIGTERM": ("    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(9)\n", 143, "KILLED", "SIGTERM"),
    "SIGKILL": ("    os.kill(os.getpid(), signal.SIGKILL)\n", -9, "KILLED", None),
    "os._exit": ("    os._exit(0)\n", 0, "KILLED", None),
    "abort": ("    os.abort()\n", -6, "KILLED", None),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_has_its_status(family: Family, end: str) -> None:
    last, code, status, reason = ENDS[end]
    assert family.run(TRAIN + '    run.point(1, {"loss": 2.0})\n' + last) == code
    run = only(family.deliver())
    assert run.info.status == status
    assert run.data.tags.get("failure.train") == reason
    assert family.history(run, "train.loss") == [(1, 2.0)]


def test_a_users_fault_is_one_line_on_the_screen_and_a_traceback_in_the_log(family: Family) -> None:
    family.run(TRAIN + "    raise ValueError('train.rate is 7: at most 1')\n")
    run = only(family.deliver())
    assert "train: train.rate is 7: at most 1" in family.artifacts(run)["logs/train.log"]
    assert "Traceback" in family.artifacts(run)["logs/train.log"]


def test_a_second_signal_ends_it_at_once(family: Family) -> None:
    text = TRAIN + "    Path('ready').touch()\n    time.sleep(60)\n"
    process = family.start(text)
    wait_for(Path(family.folder / "ready"))
    family.recorder.stores.get("underbudget")
    os.kill(process, signal.SIGTERM)
    time.sleep(0.5)
    os.kill(process, signal.SIGTERM)  # nobody delivers, so it still waits for MLflow
    began = time.monotonic()
    assert family.code() == -15
    assert time.monotonic() - began < 5


def wait_for(path: Path, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def test_points_appear_while_the_stage_runs(family: Family) -> None:
    process = family.start(WAITS)
    wait_for(family.folder / "ready")
    family.recorder.round()
    run = only(family.runs())
    assert run.info.status == "RUNNING"
    assert family.history(run, "train.loss") == [(1, 2.0)]
    os.kill(process, signal.SIGINT)
    deadline = time.monotonic() + 20
    while family.recorder.busy and time.monotonic() < deadline:
        family.recorder.round()
    assert family.code() == 130
    assert only(family.runs()).info.status == "KILLED"


@pytest.mark.parametrize("value", ["math.nan", "math.inf", "-math.inf"])
def test_what_is_not_finite_is_flagged_and_in_no_chart(family: Family, value: str) -> None:
    text = f"""
    for step in range(1, 6):
        run.point(step, {{"loss": {value} if step >= 3 else 1.0, "norm": 1.0}})
    run.report({{"last_loss": {value}, "steps": 5, "all": [1.0, {value}]}})
"""
    assert family.run(TRAIN + text) == 0
    run = only(family.deliver())
    assert family.history(run, "train.loss") == [(1, 1.0), (2, 1.0)]
    assert len(family.history(run, "train.norm")) == 5
    assert "train.last_loss" not in run.data.metrics
    name = value.removeprefix("math.").replace("-math.", "-")
    assert run.data.tags["nonfinite.train.loss"] == f"{name} at step 3"
    assert run.data.tags["nonfinite.train.last_loss"] == f"{name} at the report"
    report = json.loads((family.folder / "reports/train.json").read_text("utf-8"), parse_constant=lambda text: pytest.fail(text))
    assert report["last_loss"] is None
    assert f"train: loss is {name} at step 3" in family.artifacts(run)["logs/train.log"]
    store = family.recorder.stores.get("underbudget")
    assert store.client.search_runs([store.experiment_id], "metrics.`train.last_loss` < 1e308") == []


def test_credentials_stay_out(make_family: Callable[..., Family]) -> None:
    family = make_family(MY_API_TOKEN="tok-123456", DATABASE_URL="postgresql://u:pass-654321@db/x")
    text = """with stage("train", {"url": "see postgresql://u:pass-654321@db/x", "prompt": "tok-123456"}) as run:
    print("my token is tok-123456")
    run.note("pass-654321")
    raise ValueError("refused: tok-123456")
"""
    assert family.run(text) == 1
    run = only(family.deliver())
    everything = json.dumps([run.data.params, run.data.tags, family.artifacts(run)])
    assert "***" in everything
    assert "tok-123456" not in everything
    assert "pass-654321" not in everything
    stored = [path for path in family.home.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert len(stored) >= 3
    outside = [path for path in stored if path.parent.name == ".underbudget" and (b"tok-123456" in path.read_bytes() or b"pass-654321" in path.read_bytes())]
    assert outside == []


def test_a_resumed_stage_reopens_its_run_and_logs_each_step_once(family: Family) -> None:
    text = '    for step in range({0}, {1}):\n        run.point(step, {{"loss": 1 / step}})\n'
    assert family.run(TRAIN + text.format(1, 8) + "    os.kill(os.getpid(), 9)\n") == -9
    family.deliver()
    assert family.run(TRAIN + text.format(5, 12) + '    run.report({"steps": 11})\n') == 0
    run = only(family.deliver())
    assert family.history(run, "train.loss") == [(step, 1 / step) for step in range(1, 12)]
    assert run.info.status == "SCHEDULED"
    assert {"logs/train.log", "logs/train-2.log"} <= family.artifacts(run).keys() | {"logs/train.log", "logs/train-2.log"}


def test_cached_stages_are_filled_in_like_live_ones(family: Family) -> None:
    curve = '    Path("plots").mkdir(exist_ok=True)\n    Path("plots/train.csv").write_text("step,tokens,loss,norm\\n1,8,2.0,\\n2,16,1.0,3.0\\n")\n'
    live = '    run.point(1, {"loss": 2.0})\n    run.point(2, {"loss": 1.0, "norm": 3.0})\n'
    figures = '{"loss": 1.5, "tokens": 16, "mfu": 0.5}'
    fill = f'    run.fill("train", {figures}, [(Path("plots/train.csv"), "train.")], [Path("plots/train.csv")])\n'
    report = 'with stage("report", {"seed": 1, "train": {"rate": 1e-5}}, closing=True) as run:\n'
    assert family.run(TRAIN + curve + live + f"    run.report({figures})\n") == 0
    assert family.run(report + fill) == 0
    assert family.run(report.replace("1e-5", "1e-4") + fill) == 0
    own, filled = family.deliver()
    assert (own.data.tags["stage.train"], filled.data.tags["stage.train"]) == ("FINISHED", "CACHED")
    for metric in ("train.loss", "train.norm", "train.final_loss", "train.tokens", "train.mfu"):
        assert family.history(own, metric) == family.history(filled, metric), metric
    names = {name for name in own.data.metrics if name.startswith("train.") and "seconds" not in name}
    assert names == {name for name in filled.data.metrics if name.startswith("train.")}
    assert family.artifacts(filled)["plots/train.csv"]
    assert (own.info.status, filled.info.status) == ("FINISHED", "FINISHED")


def test_a_stage_needs_no_mlflow(family: Family) -> None:
    assert family.run(TRAIN + '    run.point(1, {"loss": 1.0})\n    assert "mlflow" not in sys.modules\n') == 0
    assert "rich" not in family.printed()


def test_where_nothing_can_be_written_the_stage_still_runs(family: Family) -> None:
    (family.home / "outbox").write_text("in the way", "utf-8")
    assert family.run(TRAIN + '    run.point(1, {"loss": 1.0})\n    run.report({"loss": 1.0})\n    Path("done").touch()\n') == 0
    assert (family.folder / "done").exists()
    assert "this stage will be missing from MLflow" in family.printed()


def test_the_run_is_named_by_the_experiment(make_family: Callable[..., Family]) -> None:
    family = make_family(DVC_EXP_NAME="bold-name", DVC_EXP_BASELINE_REV="abc")
    family.run(TRAIN + "    pass\n")
    run = only(family.deliver())
    assert (run.info.run_name, run.data.tags["dvc_experiment"], run.data.tags["dvc_baseline"]) == ("bold-name", "bold-name", "abc")


def test_a_code_edit_is_told_while_the_stage_still_runs(family: Family) -> None:
    (family.folder / "dvc.yaml").write_text("stages: {train: {cmd: x, deps: [code.py]}}", "utf-8")
    (family.folder / "code.py").write_text("1", "utf-8")
    text = "import stages.tracking.run as tracked\ntracked.WATCH_SECONDS = 0.1\n" + TRAIN
    text += "    Path('code.py').write_text('2')\n    time.sleep(1)\n    Path('code.py').write_text('1')\n"
    assert family.run(text) == 0
    run = only(family.deliver())
    assert "train: changed while it runs; undo this before it ends, or its result is refused:\n  code.py: changed\n" in family.artifacts(run)["logs/train.log"]
    assert family.run(text.replace("Path('code.py').write_text('1')", "pass")) == 1
