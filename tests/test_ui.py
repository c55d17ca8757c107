"""The UI listens on this machine alone unless told otherwise, and answers under the names it is told."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages import ui


def test_the_default_command_binds_to_loopback() -> None:
    words = ui.command(ui.arguments([]))
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert "--allowed-hosts" not in words


@pytest.mark.parametrize(
    ("given", "allowed"), [("mlflow", ["mlflow", "mlflow:*"]), ("mlflow:5000", ["mlflow:5000"]), (" a , b:1,", ["a", "a:*", "b:1"]), ("*", ["*"])]
)
def test_every_name_is_allowed_with_any_port_and_this_machine_too(given: str, allowed: list[str]) -> None:
    assert ui.allowed_hosts(given) == [*allowed, "localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*"]
    assert ui.origins(ui.allowed_hosts(given))[0] == ("*" if given == "*" else f"http://{allowed[0]}")


def test_a_server_elsewhere_is_named_without_its_password(tmp_path: Path) -> None:
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "https://me:hunter22@tracking.example.org", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-m", "stages.ui"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "open https://***@tracking.example.org" in done.stderr
    assert "hunter22" not in done.stderr + done.stdout


def test_a_port_that_is_taken_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert ui.taken("127.0.0.1", port)
        environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "DVC_ROOT": str(tmp_path), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/x.db"}
        command = [sys.executable, "-m", "stages.ui", "--port", str(port)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert not ui.taken("127.0.0.1", port)
    assert done.returncode == 1
    assert f"port {port} is taken" in done.stderr and "--port" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture(scope="module", params=["mlflow", "mlflow:{port}"])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real server, allowed under one name: with the port in the list and without."""
    folder = tmp_path_factory.mktemp("ui")
    shutil.copyfile("params.yaml", folder / "params.yaml")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
    command = [sys.executable, "-m", "stages.ui", "--port", str(number), "--allowed-hosts", request.param.format(port=number)]
    environment = {**kept, "PYTHONPATH": str(Path.cwd()), "DVC_ROOT": str(folder)}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + 180
    while not listens(number):
        assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text("utf-8")
        time.sleep(0.2)
    yield number
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(port: int, host: str) -> int:
    """Status of a search of experiments, sent as a browser at http://<host> would."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Host": host, "Origin": f"http://{host}", "Content-Type": "application/json"}
    connection.request("POST", "/ajax-api/2.0/mlflow/experiments/search", '{"max_results": 1}', headers)
    return connection.getresponse().status


@pytest.mark.slow
def test_it_answers_under_its_names_and_refuses_others(port: int) -> None:
    assert ask(port, f"mlflow:{port}") == 200
    assert ask(port, f"127.0.0.1:{port}") == 200
    assert ask(port, f"evil.example.org:{port}") == 403


def test_run_from_another_folder_it_says_where_to_go(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
    environment = {**kept, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-m", "stages.ui", "--port", "1"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "params.yaml is missing; run from the folder that holds it"
    assert not list(tmp_path.iterdir())
