"""A process is known by more than its number."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.tracking import processes


def test_this_process_is_alive_and_young() -> None:
    assert processes.alive(processes.identity())
    assert 0 < time.time() - processes.started() < 24 * 3600


@pytest.mark.parametrize("name", ["", "nonsense", "a:b:c", f"{socket.gethostname()}:999999999:1", f"{socket.gethostname()}:{os.getpid()}:1"])
def test_nobody(name: str) -> None:
    assert not processes.alive(name)


def test_another_machine_is_taken_to_live() -> None:
    assert processes.alive("elsewhere:1:1")


def test_a_killed_child_is_dead_before_it_is_buried() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = processes.identity(child.pid)
    assert processes.alive(name)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but still in the process table
    assert not processes.alive(name)
    child.communicate()
    assert not processes.alive(name)


def test_the_dvc_command_above(tmp_path: Path) -> None:
    inner = "from stages.tracking import processes; print(processes.dvc_command())"
    script = tmp_path / "dvc"
    script.write_text(f"import os, subprocess, sys\nprint(os.getpid(), flush=True)\nsubprocess.call(['sh', '-c', 'python3 -c \"$1\"; true', 'sh', {inner!r}])")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(Path.cwd())}
    found = subprocess.run([sys.executable, str(script)], env=environment, text=True, capture_output=True, check=True).stdout.split()
    assert found[1].split(":")[1] == found[0]
