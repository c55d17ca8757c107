"""How long a training lasts, in tokens, epochs, seconds or steps, and how far along it is."""

from dataclasses import dataclass
from typing import Literal

from stages.params import Train
from stages.training.step import Fit


@dataclass(frozen=True)
class Length:
    """The end of a training: after the first step at which `amount` of `unit` is reached.

    No step is cut short: a batch is the same whatever the length. So the tokens read exceed `amount` by less than one step. Whole epochs end
    exactly, since no step crosses the end of an epoch. Seconds run from the start of the first step and include what `on_step` does
    (validation, saving). `sequences`: those in an epoch; needed for epochs only.
    """

    unit: Literal["tokens", "epochs", "seconds", "steps"]
    amount: float
    sequences: int = 0

    def progress(self, done: Fit) -> float:
        """The share of the length behind `done`, 0 to 1."""
        return min(self._amount(done) / self.amount, 1.0)

    def _amount(self, done: Fit) -> float:
        if self.unit == "epochs":
            return done.epoch + done.sequences / self.sequences
        return float({"tokens": done.tokens, "seconds": done.seconds, "steps": done.steps}[self.unit])


def from_params(train: Train, sequences: int) -> Length:
    """The length that params.yaml asks for; `sequences` is the number in an epoch of the train split."""
    if train.max_tokens is not None:
        return Length("tokens", train.max_tokens)
    if train.max_epochs is not None:
        return Length("epochs", train.max_epochs, sequences)
    assert train.max_seconds is not None  # params.Train lets exactly one of the three through
    return Length("seconds", train.max_seconds)
