"""What one optimizer update looks like from outside, and how a training ends."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stages.data.batches import Batch
from stages.training.readback import Readback

if TYPE_CHECKING:
    from stages.training.guard import Guard


class Stop(Exception):  # noqa: N818  # an end, like StopIteration, not an error
    """Raised by `on_step` to end the training after this step; `fit` returns as usual."""


class NonFiniteError(ValueError):
    """A loss or gradient that is not finite, or too many fp16 overflows in a row.

    `step`: the first such step, from 1; `figure`: what it is that is not finite; `skipped_steps`: overflows so far.
    """

    def __init__(self, step: int, figure: str, message: str, skipped_steps: int = 0) -> None:
        super().__init__(message)
        self.step = step
        self.figure = figure
        self.skipped_steps = skipped_steps


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer update. Everything is a host number but `loss` and `grad_norm`: reading them waits for the device to get there, so read them when wanted.

    `index` counts from 1, `tokens` are those this step read, `total_tokens` those of all steps so far, `predicted` the tokens its loss averages
    over, `progress` the share of the length (0 to 1) that is done after it, `seconds` the wall time since the previous `on_step` returned, and what that one
    waited for the device.
    """

    index: int
    learning_rate: float
    tokens: int
    total_tokens: int
    predicted: int
    epoch: int
    accumulation_steps: int
    progress: float
    seconds: float
    _figures: Readback = field(repr=False)  # summed loss, gradient norm
    _guard: "Guard" = field(repr=False)

    def check(self) -> None:
        """Wait for this step; raises NonFiniteError when this or an earlier step went wrong."""
        self._guard.check(self.index)

    @property
    def loss(self) -> float:
        """Nats per predicted token of the whole step. Raises NonFiniteError as `check` does."""
        self.check()
        return self._figures.read()[0] / self.predicted

    @property
    def grad_norm(self) -> float:
        """Global norm of the unscaled gradient before clipping; infinite where `skipped`. Raises NonFiniteError as `check` does."""
        self.check()
        return self._figures.read()[1]

    @property
    def skipped(self) -> bool:
        """Whether the gradient overflowed in fp16, so that the weights stayed as they were."""
        return self._guard.scaled and not math.isfinite(self.grad_norm)


OnStep = Callable[[Step], None]


@dataclass(slots=True)
class Fit:
    """How far a training has come, and what it came to.

    `steps` done, input `tokens` read, `epoch` (from 0) and the `sequences` read of it, wall `seconds` since the start of the first step,
    `skipped_steps` by fp16 overflow, `empty_groups` of micro-batches in which nothing was to be predicted (read, but no steps), and
    whether `on_step` `stopped` it.
    """

    steps: int = 0
    tokens: int = 0
    epoch: int = 0
    sequences: int = 0
    seconds: float = 0.0
    skipped_steps: int = 0
    empty_groups: int = 0
    stopped: bool = False

    def read(self, group: list[Batch]) -> int:
        """Count the micro-batches of a step as read; returns how many tokens they predict. None at all: it is no step."""
        predicted = sum(batch.predicted for batch in group)
        self.tokens += sum(batch.tokens for batch in group)
        self.epoch = group[-1].epoch
        self.sequences = group[-1].start + len(group[-1].inputs)
        self.steps += predicted > 0
        self.empty_groups += predicted == 0
        return predicted

    def tell(self, on_step: OnStep, step: Step) -> None:
        """Show `step` to `on_step`, which may raise Stop."""
        try:
            on_step(step)
        except Stop:
            self.stopped = True
