"""README tells the truth: every command in it runs, as it stands there, in a small copy of the project; every path in it exists."""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Project

README = (ROOT / "README.md").read_text("utf-8")
ELSEWHERE = {
    "make test",  # this very suite
    "make ui",  # test_the_ui_answers_on_loopback
    "make lint",  # .ci/run
}


def blocks(language: str) -> list[str]:
    """The fenced code blocks of README in `language`, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every shell command, a line each, without its trailing comment."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


def environment(home: Path) -> dict[str, str]:
    """A user's shell: a home of their own with notes in it, this interpreter first on PATH, no settings of the test run."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))}
    return {**kept, "HOME": str(home), "PATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def project(make_project: Callable[..., Project], tmp_path: Path) -> Project:
    """A small project whose .venv is this interpreter's, fresh by its own stamp, and a home that holds ~/notes."""
    made = make_project()
    venv = made.folder / ".venv"
    venv.mkdir()
    for part in Path(sys.prefix).iterdir():
        if part.name != ".stamp":  # of the environment in use: it must not become fresh by this
            (venv / part.name).symlink_to(part)
    (venv / ".stamp").touch()
    shutil.copytree(made.folder / "inputs" / "text" / "speeches", tmp_path / "notes")
    return made


def test_readme_has_commands_and_python() -> None:
    assert len(commands()) >= 10
    assert len(blocks("python")) >= 2
    assert set(commands()) >= {"make repro", "make test", "make ui"}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_command_runs(project: Project, tmp_path: Path) -> None:
    for command in commands():
        if command in ELSEWHERE:
            continue
        result = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=project.folder, env=environment(tmp_path), capture_output=True, text=True)
        assert result.returncode == 0, f"{command}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    let_the_queue_end(project)
    for block in blocks("python"):
        subprocess.run([sys.executable, "-c", block], cwd=project.folder, env=environment(tmp_path), check=True)


def let_the_queue_end(project: Project, within_seconds: float = 400) -> None:
    """Wait for the experiments that `dvc queue start` runs in the background, so that they do not outlive the test."""
    deadline = time.monotonic() + within_seconds
    while re.search("Running|Queued", project.dvc("queue", "status").stdout) and time.monotonic() < deadline:
        time.sleep(3)


@pytest.mark.slow
def test_the_ui_answers_on_loopback(project: Project, tmp_path: Path) -> None:
    server = subprocess.Popen(["make", "ui"], cwd=project.folder, env=environment(tmp_path), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        assert answers("http://127.0.0.1:5000/", within_seconds=90)
        assert server.poll() is None, "another server answered"
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


def answers(address: str, within_seconds: float) -> bool:
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            time.sleep(1)
    return False


def test_every_picture_and_file_it_links_exists() -> None:
    targets = re.findall(r"\]\(([^)#\s]+)\)", README)
    local = [target for target in targets if "://" not in target]
    assert local
    assert not [target for target in local if not (ROOT / target).exists()]


def test_the_tree_names_only_what_exists() -> None:
    (tree,) = [block for block in blocks("text") if "stages/" in block]
    folders = re.findall(r"^\s*([\w./-]+/)\s", tree, flags=re.MULTILINE)
    assert len(folders) >= 8
    missing = [name for name in folders if not any((base / name).exists() for base in (ROOT, ROOT / "stages"))]
    assert not missing
