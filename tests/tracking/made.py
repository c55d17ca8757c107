"""A store made once and copied, and stages run as children of something called dvc whose recorder is the test itself."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from stages.tracking import processes
from stages.tracking.outbox import take
from stages.tracking.recorder import Recorder, lock_of
from stages.tracking.store import Claim

LAUNCHER = """
import json, subprocess, sys
for line in sys.stdin:
    child = subprocess.Popen([sys.executable, *json.loads(line)], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(child.pid, flush=True)
    print(child.wait(), flush=True)
"""
HEAD = "import math, os, signal, sys, time\nfrom pathlib import Path\nfrom stages.tracking.run import stage\n"


def claim(stage: str = "train", **changes: Any) -> Claim:
    values = {"key": "k" * 16, "name": "abc-kkk", "process": processes.identity(), "dvc": "", "workspace": "/w", "closing": stage == "report"}
    return Claim(stage=stage, **{**values, **changes})


class Family:
    """A folder with stages to run in it, as children of one living `dvc`. `deliver` does what its recorder would."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.home = folder, folder / ".underbudget"
        (folder / "dvc").write_text(LAUNCHER, "utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))}
        variables = {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "DVC_ROOT": str(folder), "OMP_NUM_THREADS": "1", **environment}
        with (folder / "printed.txt").open("ab") as printed:
            pipe = subprocess.PIPE
            self.dvc = subprocess.Popen([sys.executable, "dvc"], cwd=folder, env=variables, stdin=pipe, stdout=pipe, stderr=printed, text=True)
        self.name = processes.identity(self.dvc.pid)
        self.home.mkdir(exist_ok=True)
        self._lock = lock_of(self.home, self.name)
        assert take(self._lock)
        self.recorder = Recorder(self.home, self.name)
        self._told: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, text: str) -> int:
        """Start a script; returns its process id."""
        assert self.dvc.stdin
        (self.folder / "script.py").write_text(HEAD + text, "utf-8")
        self.dvc.stdin.write(json.dumps(["script.py"]) + "\n")
        self.dvc.stdin.flush()
        return self._told.get(timeout=60)

    def code(self) -> int:
        """The script's exit code; until it ends, its words are delivered."""
        while True:
            self.recorder.round()
            with contextlib.suppress(queue.Empty):
                return self._told.get(timeout=0.05)

    def _listen(self) -> None:
        assert self.dvc.stdout
        for line in self.dvc.stdout:
            self._told.put(int(line))

    def run(self, text: str, *, deliver: bool = True) -> int:
        self.start(text)
        return self.code() if deliver else self._told.get(timeout=60)

    def deliver(self) -> list[Any]:
        """Deliver everything; the runs then, the oldest first."""
        assert self.recorder.round()
        assert not self.recorder.busy
        return self.runs()

    def runs(self) -> list[Any]:
        store = self.recorder.stores.get("underbudget")
        return list(store.client.search_runs([store.experiment_id], order_by=["attributes.start_time ASC"]))

    def history(self, run: Any, metric: str) -> list[tuple[int, float]]:
        """(step, value) of every point."""
        store = self.recorder.stores.get("underbudget")
        return [(point.step, point.value) for point in store.client.get_metric_history(run.info.run_id, metric)]

    def artifacts(self, run: Any) -> dict[str, str]:
        """Text of every artifact by its path in the run."""
        root = self.home / "artifacts" / run.info.run_id / "artifacts"
        return {path.relative_to(root).as_posix(): path.read_text("utf-8", "replace") for path in root.rglob("*") if path.is_file()}

    def printed(self) -> str:
        """What the scripts wrote."""
        return (self.folder / "printed.txt").read_text("utf-8")

    def close(self) -> None:
        self.recorder.close()
        self._lock.release()
        self.dvc.kill()
        self.dvc.communicate()
