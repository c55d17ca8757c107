"""Which run a stage asks for, and to whom a run belongs, as the runs' tags tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stages.tracking import processes


@dataclass(frozen=True, slots=True)
class Claim:
    """Which run a stage asks for."""

    key: str
    stage: str
    name: str
    process: str
    dvc: str
    workspace: str
    closing: bool
    started: int | None = None  # milliseconds; None: now

    @property
    def tags(self) -> dict[str, str]:
        """The tags by which later stages find the run, and later commands see who works on it."""
        stage = {f"stage.{self.stage}": "RUNNING", f"process.{self.stage}": self.process}
        return {"key": self.key, "dvc_process": self.dvc, "workspace": self.workspace, **stage}


@dataclass(slots=True)
class Joined:
    """The run a stage writes to. `steps`: the last step of each of its metrics that an earlier, broken-off try has logged."""

    run_id: str
    tries: int = 1
    steps: dict[str, int] = field(default_factory=dict)


def ours(tags: Mapping[str, str], claim: Claim) -> bool:
    """Whether the run belongs to this very pipeline run."""
    return tags.get("workspace") == claim.workspace and (not claim.dvc or tags.get("dvc_process") == claim.dvc)


def working(tags: Mapping[str, str]) -> bool:
    """Whether a living stage is at work on the run."""
    running = (name.removeprefix("stage.") for name, value in tags.items() if name.startswith("stage.") and value == "RUNNING")
    return any(processes.alive(tags.get(f"process.{stage}", "")) for stage in running)


def busy(tags: Mapping[str, str]) -> bool:
    """Whether another run of the pipeline has the run in hand: a stage of it lives, or the DVC command between its stages."""
    return "closed" not in tags and (working(tags) or processes.alive(tags.get("dvc_process", "")))
