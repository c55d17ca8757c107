"""A pipeline of tiny stages in a repository of its own: they do next to nothing, but with the real dvc.yaml, params.yaml, tracking and report."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

STAGE = '''"""A stage that does next to nothing."""
import json, math, os, sys, time
from pathlib import Path
from stages.params import load
from stages.tracking.curves import Curve
from stages.tracking.run import stage

def put(path, text="x"):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)

def tokenize(params, run):
    put("data/tokenizer/tokenizer.json")
    put("data/tokens/train.bin", params.data.encoding)
    put("data/tokens/meta.json", json.dumps({"splits": {"train": {"tokens": 10}}}))
    run.report({"train": {"tokens": 10}, "vocab_size": params.tokenizer.vocab_size})

def train(params, run):
    if params.train.learning_rate > 1:
        raise ValueError(f"train.learning_rate is {params.train.learning_rate}: too large")
    with Curve("plots/train.csv", ("step", "tokens", "loss", "memory_bytes")) as curve:
        for step in range(1, 21):
            loss = params.train.learning_rate * 100 / step
            curve.row(step=step, tokens=step * 8, loss=loss)
            run.point(step, {"loss": loss})
    with Curve("plots/validation.csv", ("step", "tokens", "loss")) as curve:
        curve.row(step=20, tokens=160, loss=0.5)
        run.point(20, {"validation_loss": 0.5})
    time.sleep(float(os.environ.get("TINY_SECONDS", 0)))
    for folder in ("models/model", "models/last"):
        put(f"{folder}/weights", str(params.train.learning_rate))
    put("tensorboard/train/events")
    run.report({"last_loss": loss, "steps": 20, "best_validation_loss": 0.5})

def profile(params, run):
    put("plots/phases.csv", "phase,seconds\\nforward,0.5\\nbackward,1.5\\n")
    put("plots/operators.csv", "operator,calls,seconds\\nmm,2,0.5\\n")
    put("profile/trace.json.gz")
    put("tensorboard/profile/events")
    run.artifact("profile/trace.json.gz", "profile")
    run.report({"mfu": 0.5})

def evaluate(params, run):
    put("evaluation/samples.md", "# Once\\n\\nupon a time")
    put("plots/loss_by_position.csv", "position,loss\\n0,3.0\\n1,2.0\\n")
    run.artifact("evaluation/samples.md", "evaluation")
    run.report({"loss": 0.7, "bits_per_byte": 1.5, "bz2_bits_per_byte": 1.8, "batch_size": params.evaluate.batch_size})

def quantize(params, run):
    put("models/quantized/manifest.json")
    put("plots/quantization.csv", "variant,bytes,perplexity\\nfp32,100,2.0\\nint8,30,2.1\\n")
    run.report({"best": "int8", "int8": {"size_ratio": 0.3}, "decode_tokens": params.quantize.decode_tokens})

if __name__ == "__main__":
    name, params = Path(sys.argv[0]).stem, load()
    with stage(name, params.model_dump(mode="json"), experiment=params.tracking.experiment) as run:
        globals()[name](params, run)
'''
VERBS = ("tokenize", "train", "profile", "evaluate", "quantize")
NOUNS = ("data", "models", "training", "evaluation", "memory", "profiling", "quantization")
COPIED = (
    "dvc.yaml",
    "params.yaml",
    ".gitignore",
    ".dvcignore",
    ".dvc/config",
    ".dvc/.gitignore",
    "stages/__init__.py",
    "stages/params.py",
    "stages/report.py",
    "reports/.gitignore",
)


class Tiny:
    """The repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path) -> "Tiny":
        """Everything written and committed, nothing run."""
        tiny = cls(folder)
        for name in COPIED:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        shutil.copytree(ROOT / "stages/tracking", folder / "stages/tracking", ignore=shutil.ignore_patterns("__pycache__"))
        written = {f"stages/{verb}.py": STAGE for verb in VERBS} | {f"stages/{noun}/__init__.py": "" for noun in NOUNS}
        written |= {f"inputs/{kind}/README.md": "" for kind in ("text", "tokenizer", "weights")} | {"requirements.txt": "dvc\n"}
        for name, text in written.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")
        tiny.run("git", "init", "--quiet", "--initial-branch", "main")
        tiny.run("git", "config", "user.name", "tester")
        tiny.run("git", "config", "user.email", "tester@example.invalid")
        tiny.commit("tiny")
        return tiny

    def copy(self, folder: Path) -> "Tiny":
        """A copy with everything that was run."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Tiny(folder)

    def start(self, *command: str, **environment: str) -> "subprocess.Popen[str]":
        """Start `command` there; what it prints is in its standard output."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
        variables = {**kept, "PATH": path, "OMP_NUM_THREADS": "1", **environment}
        return subprocess.Popen(command, cwd=self.folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, *command: str, code: int | None = 0, **environment: str) -> str:
        """Run `command` there and return what it printed; `code` is the exit status it must have, None: any but 0."""
        process = self.start(*command, **environment)
        printed, _ = process.communicate(timeout=400)
        expected = process.returncode == code if code is not None else process.returncode != 0
        assert expected, f"{' '.join(command)} ended {process.returncode}:\n{printed[-5000:]}"
        return printed

    def dvc(self, *arguments: str, code: int | None = 0, **environment: str) -> str:
        return self.run(sys.executable, "-m", "dvc", *arguments, code=code, **environment)

    def set(self, old: str, new: str) -> None:
        """Replace a line of params.yaml."""
        path = self.folder / "params.yaml"
        text = path.read_text("utf-8")
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new), "utf-8")

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", message)

    def rows(self) -> list[Any]:
        """The MLflow runs of the store, the oldest first."""
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{self.folder}/.underbudget/mlflow.db")
        experiment = client.get_experiment_by_name("underbudget")
        assert experiment is not None
        return list(client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"]))

    def history(self, run: Any, metric: str) -> list[tuple[int, float]]:
        """(step, value) of every point of a metric."""
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{self.folder}/.underbudget/mlflow.db")
        return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, metric)]


def stages_of(run: Any) -> dict[str, str]:
    """Status by stage."""
    return {name.removeprefix("stage."): value for name, value in run.data.tags.items() if name.startswith("stage.")}
