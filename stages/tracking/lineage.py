"""Where a result came from: commit, uncommitted changes, DVC experiment, hashes of data and lock, machine, packages, threads."""

import getpass
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from stages.tracking.pipeline import file_hash, parse_yaml

MAX_DIFF_BYTES = 2_000_000
HASH_LENGTH = 16  # hexadecimal digits
SHOWN_PACKAGES = ("torch", "transformers", "tokenizers", "dvc", "mlflow", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a stage comes from: the commit ("" without git), what is not committed, tags, and the data it reads."""

    commit: str
    diff: str
    tags: dict[str, str]
    dataset: dict[str, str] | None


def origin(params: Mapping[str, Any], *, later: bool) -> Origin:
    """The present origin; what dvc.lock says of the data counts for a stage that comes `later` than tokenize."""
    sha, diff, locked = commit(), uncommitted(), hashes() if later else {}
    return Origin(sha, diff, tags(sha, diff) | locked, dataset(params, locked.get("hash.data", "")))


def title(sha: str, key: str) -> str:
    """The name of a run: DVC's experiment, else commit and key."""
    return os.environ.get("DVC_EXP_NAME") or f"{sha[:7] or 'nogit'}-{key[:6]}"


def git(*arguments: str) -> str:
    """What git prints; empty outside of a repository or without git."""
    try:
        command = ["git", "-c", "core.quotePath=false", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False, stdin=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def commit() -> str:
    """The full id of HEAD; empty before the first commit."""
    return git("rev-parse", "--verify", "-q", "HEAD").strip()


def uncommitted() -> str:
    """The difference to HEAD of tracked files, cut visibly when huge, and the names of untracked ones. Results of stages do not count.

    Of what lies under inputs/ only the names: it is the user's own text, which `dvc exp run` has git track, and its content is hashed in the key.
    """
    results = (":(exclude)reports", ":(exclude)dvc.lock")
    text = git("diff", "HEAD", "--no-ext-diff", "--no-color", "--", ".", ":(exclude)inputs", *results)
    inputs = git("diff", "HEAD", "--name-status", "--no-renames", "--", "inputs")
    names = git("ls-files", "--others", "--exclude-standard", "--", ".", *results)
    if len(text) > MAX_DIFF_BYTES:
        text = f"{text[:MAX_DIFF_BYTES]}\n... cut here: the difference has {len(text)} characters\n"
    return text + inputs + "".join(f"untracked: {name}\n" for name in names.splitlines())


def tags(sha: str, diff: str) -> dict[str, str]:
    """What a person filters runs by."""
    found = {
        "commit": sha or "none",
        "dirty": str(bool(diff)).lower(),
        "dvc_experiment": os.environ.get("DVC_EXP_NAME", ""),
        "dvc_baseline": os.environ.get("DVC_EXP_BASELINE_REV", ""),
        "python": platform.python_version(),
        "mlflow.user": _user(),
        "mlflow.source.name": "dvc.yaml",
        "mlflow.source.type": "PROJECT",
        "mlflow.source.git.commit": sha,
        **{f"version.{name}": version for name in SHOWN_PACKAGES if (version := _version(name))},
    }
    lock = Path("requirements.txt")
    if lock.is_file():
        found["hash.lock"] = file_hash(lock)[:HASH_LENGTH]
    return {name: value for name, value in found.items() if value}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return ""


def hashes() -> dict[str, str]:
    """Hashes of data and tokenizer, as dvc.lock has them."""
    found = {entry["path"].rstrip("/"): str(entry.get("md5", "")) for entry in locked("tokenize").get("outs", ())}
    paths = {"data": "data/tokens", "tokenizer": "data/tokenizer"}
    return {f"hash.{name}": found[path] for name, path in paths.items() if path in found}


def locked(stage: str) -> dict[str, Any]:
    """What dvc.lock says of one stage; the rest of it, which takes a third of a second to parse, is skipped."""
    lock = Path("dvc.lock")
    lines = lock.read_text("utf-8").splitlines() if lock.is_file() else []
    if f"  {stage}:" not in lines:
        return {}
    start = lines.index(f"  {stage}:") + 1
    block = list(itertools.takewhile(lambda line: line.startswith("    "), lines[start:]))
    return dict(parse_yaml("\n".join(block)))


def dataset(params: Mapping[str, Any], digest: str) -> dict[str, str] | None:
    """Name, digest, source and profile of the tokenized text, for MLflow's dataset list; None before tokenize has run."""
    meta = Path("data/tokens/meta.json")
    if not digest or not meta.is_file():
        return None
    source = str((params.get("data") or {}).get("source", "data"))
    splits = json.loads(meta.read_text("utf-8")).get("splits", {})
    return {"name": source, "digest": digest[:36], "source": source, "profile": json.dumps(splits)}


def threads() -> int:
    """Threads that the arithmetic ran on: torch's own count where it was used."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch else int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def environment() -> str:
    """The machine and every installed package, as text for a person."""
    lines = [f"python {sys.version.split()[0]}", f"platform {platform.platform()}", f"cpu {_cpu()}, {os.cpu_count()} logical cores", *_gpus()]
    packages = sorted({f"{item.metadata['Name']}=={item.version}" for item in metadata.distributions()}, key=str.lower)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM")
    lines += [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return "\n".join([*lines, "", *packages]) + "\n"


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """One line for each NVIDIA device, with its driver."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ["gpu none"]
    return [f"gpu {line.strip()}" for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else ["gpu none"]
