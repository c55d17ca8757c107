"""A tracking server that goes away costs a stage nothing, and loses nothing: real recorders, a real server, real kills."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.tracking import processes
from stages.tracking.outbox import Outbox, waiting
from stages.tracking.recorder import Recorder
from tests.tracking.made import HEAD, Family

POINTS = """with stage("train", {"seed": 1}) as run:
    for step in range(1, 41):
        run.point(step, {"loss": 1 / step})
        Path("at").write_text(str(step))
        time.sleep(PAUSE)
    run.report({"steps": 40})
"""


class Server:
    """`mlflow server` on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri, self._folder = f"http://127.0.0.1:{self.port}", folder
        self.start()

    def start(self) -> None:
        words = ["--backend-store-uri", f"sqlite:///{self._folder}/server.db", "--artifacts-destination", str(self._folder / "kept")]
        command = [sys.executable, "-m", "mlflow", "server", *words, "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        until(self._answers, 120)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    made = Server(folder)
    yield made
    made.stop()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir()
    return made


def start(project: Path, text: str, **environment: str) -> "subprocess.Popen[str]":
    """A stage with a recorder of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
    variables = {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "DVC_ROOT": str(project), **environment}
    return subprocess.Popen([sys.executable, "-c", HEAD + text], cwd=project, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def at(project: Path, step: int) -> None:
    place = project / "at"
    until(lambda: place.is_file() and place.read_text("utf-8") and int(place.read_text("utf-8")) >= step)


def points(uri: str) -> tuple[list[int], str]:
    """Steps of the only run's curve, and its status."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("underbudget")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    return [point.step for point in client.get_metric_history(run.info.run_id, "train.loss")], run.info.status


def idle(project: Path) -> bool:
    return not list((project / ".underbudget/outbox").iterdir())


@pytest.mark.slow
def test_a_server_that_is_back_in_time_has_every_point(server: Server, project: Path) -> None:
    process = start(project, POINTS.replace("PAUSE", "0.5"), MLFLOW_TRACKING_URI=server.uri)
    at(project, 10)
    server.stop()
    at(project, 25)
    server.start()
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    until(lambda: idle(project), 120)
    assert points(server.uri) == (list(range(1, 41)), "SCHEDULED")


@pytest.mark.slow
def test_a_server_that_never_comes_back_costs_nothing_and_the_replay_sends_it_all(server: Server, project: Path) -> None:
    process = start(project, POINTS.replace("PAUSE", "0.2"), MLFLOW_TRACKING_URI=server.uri)
    at(project, 10)
    server.stop()
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "are not there yet" in printed
    (left,) = waiting(project / ".underbudget")
    until(lambda: not processes.alive(left.opening()["process"]))  # type: ignore[index]
    server.start()
    until(lambda: idle(project), 120)  # the recorder goes on in the background
    assert points(server.uri) == (list(range(1, 41)), "SCHEDULED")


@pytest.mark.slow
def test_a_recorder_that_is_killed_is_replaced(project: Path) -> None:
    text = "import stages.tracking.run as tracked\ntracked.WATCH_SECONDS = 0.2\n" + POINTS.replace("PAUSE", "0.1")
    process = start(project, text)
    at(project, 5)
    recorders = [int(line.split()[0]) for line in ps() if "stages.tracking.recorder" in line and str(project) in line]
    assert len(recorders) == 1
    os.kill(recorders[0], signal.SIGKILL)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    until(lambda: idle(project), 120)
    assert points(f"sqlite:///{project}/.underbudget/mlflow.db") == (list(range(1, 41)), "SCHEDULED")


def ps() -> list[str]:
    return subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
def test_everything_is_killed_and_the_next_command_mends_it(project: Path) -> None:
    process = start(project, POINTS.replace("PAUSE", "0.1"))
    at(project, 20)
    recorders = [int(line.split()[0]) for line in ps() if "stages.tracking.recorder" in line and str(project) in line]
    for each in [*recorders, process.pid]:
        os.kill(each, signal.SIGKILL)
    process.communicate()
    uri = f"sqlite:///{project}/.underbudget/mlflow.db"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
    variables = {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "DVC_ROOT": str(project)}
    done = subprocess.run([sys.executable, "-m", "stages.replay"], cwd=project, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "train of run nogit-" in done.stdout
    steps, status = points(uri)
    assert status == "KILLED"
    assert steps[:20] == list(range(1, 21))
    assert idle(project)


@pytest.mark.parametrize("damage", [b'{"event": "open", "key": 3}\n', b"rubbish\n", b"", b"whole"])
def test_an_outbox_that_cannot_be_sent_is_put_aside_and_stops_nobody(family: Family, damage: bytes) -> None:
    outbox = Outbox.create(family.home, "train")
    (outbox.folder / "owner").write_text("gone", "utf-8")
    opening = dict.fromkeys(("key", "stage", "name", "process", "dvc", "workspace", "experiment"), "x") | {"closing": False, "secrets": []}
    whole = json.dumps({"event": "open", **opening, "params": {"a": ["no text"]}, "tags": {}, "dataset": 7}).encode() + b"\n"
    (outbox.folder / "events.jsonl").write_bytes(whole if damage == b"whole" else damage)
    assert family.run('with stage("train", {"seed": 1}) as run:\n    run.point(1, {"loss": 1.0})\n') == 0
    for _ in range(3):
        assert family.recorder.round()
    assert len(family.runs()) == 1
    aside = [path.name for path in (family.home / "refused").glob("*")]
    assert aside == ([outbox.folder.name] if damage else [])
    assert not outbox.folder.exists()
    assert any("lies in" in line for line in family.recorder.news) is bool(damage)


@pytest.mark.slow
def test_a_busy_store_is_asked_again(family: Family) -> None:
    family.run('with stage("train", {"seed": 1}) as run:\n    run.point(1, {"loss": 1.0})\n')
    family.deliver()
    busy = sqlite3.connect(family.home / "mlflow.db", isolation_level=None)
    busy.execute("BEGIN EXCLUSIVE")
    assert family.run('with stage("train", {"seed": 2}) as run:\n    run.point(1, {"loss": 2.0})\n', deliver=False) == 0
    assert not family.recorder.round()
    assert family.recorder.busy
    busy.execute("ROLLBACK")
    busy.close()
    _, run = family.deliver()
    assert family.history(run, "train.loss") == [(1, 2.0)]


def test_what_waits_is_delivered_by_the_next_command_in_order(family: Family) -> None:
    texts = {"tokenize": "", "train": '    run.point(1, {"loss": 1.0})\n', "report": "    pass\n"}
    for name, text in texts.items():
        closing = ", closing=True" if name == "report" else ""
        assert family.run(f'with stage("{name}", {{"seed": 1}}{closing}) as run:\n    print("x")\n{text}', deliver=False) == 0
    family.dvc.kill()
    family.dvc.wait()
    later = Recorder(family.home, "somebody:else:1")
    assert later.round()
    assert not later.busy
    later.close()
    (run,) = family.runs()
    assert run.info.status == "FINISHED"
    assert {name for name in run.data.tags if name.startswith("stage.")} == {"stage.tokenize", "stage.train", "stage.report"}
    assert len(later.news) == 3
    assert idle(family.folder)


def test_a_killed_stages_log_is_left_out_where_its_secrets_are_unknown(make_family: Callable[..., Family]) -> None:
    family = make_family(MY_SECRET="verysecret")
    assert family.run('with stage("train", {"seed": 1}) as run:\n    print("verysecret", flush=True)\n    os.kill(os.getpid(), 9)\n') == -9
    (run,) = family.deliver()
    assert "logs/train.log" not in family.artifacts(run)
