"""What a whole training came to, gathered step by step at a constant cost each."""

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

from stages.training.step import Fit, Step


@dataclass(slots=True)
class Summary:
    """Losses and times of a training. Losses are nats per predicted token; a validation's `step` is the one it followed."""

    first_loss: float = math.nan
    last_loss: float = math.nan
    validation_loss: float = math.nan
    best_validation_loss: float = math.inf
    best_step: int = 0
    validated_step: int = 0
    validation_seconds: float = 0.0
    saving_seconds: float = 0.0
    step_seconds: "array[float]" = field(default_factory=lambda: array("d"))

    def time(self, step: Step) -> None:
        """Count a step's seconds; does not wait for the device."""
        self.step_seconds.append(step.seconds)

    def loss(self, step: Step) -> None:
        """Take a step's loss; waits for the device."""
        self.last_loss = step.loss
        if step.index == 1:
            self.first_loss = self.last_loss

    def validation(self, step: Step, loss: float) -> bool:
        """Take a validation; returns whether it is the best so far."""
        self.validated_step, self.validation_loss = step.index, loss
        better = loss < self.best_validation_loss
        if better:
            self.best_validation_loss, self.best_step = loss, step.index
        return better

    def report(self, done: Fit, sequences: int) -> dict[str, Any]:
        """Figures with units in their names; `sequences` are those of an epoch. Speed and times by step leave validation and saving out."""
        ordered = sorted(self.step_seconds)
        epochs, seconds = done.epoch + done.sequences / sequences, sum(ordered)
        return {
            "steps": done.steps,
            "tokens": done.tokens,
            "epochs": epochs,
            "tokens_per_second": done.tokens / seconds,
            "first_loss": self.first_loss,
            "last_loss": self.last_loss,
            "validation_loss": self.validation_loss,
            "best_validation_loss": self.best_validation_loss,
            "best_step": self.best_step,
            "skipped_steps": done.skipped_steps,
            "seconds": {
                "training": seconds,
                "validation": self.validation_seconds,
                "saving": self.saving_seconds,
                "epoch": seconds / epochs,
                "step_median": _quantile(ordered, 0.5),
                "step_p90": _quantile(ordered, 0.9),
            },
        }


def _quantile(ordered: list[float], share: float) -> float:
    """The value below which `share` of the ordered values lie, between its two neighbours."""
    position = share * (len(ordered) - 1)
    low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
    return low + (high - low) * (position - math.floor(position))
