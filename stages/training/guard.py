"""Watches every step's loss and gradient for values that are not finite, without waiting for the device before somebody asks."""

import math
from typing import NoReturn

import torch
from torch import Tensor

from stages.training.optimizer import is_fused
from stages.training.step import NonFiniteError

CHECK_INTERVAL = 100  # steps between two checks where a check waits for the device and nobody reads a loss
ADVICE = "lower train.learning_rate, lengthen train.warmup or set train.clip_norm"


class Guard:
    """Keeps each step's loss and gradient norm on the device until `check` reads them all at once and raises NonFiniteError for the first bad one.

    The bad step's update, and any after it, never reach the weights: where a look is free (CPU) or nothing else helps, each step is checked before its
    update; else the fused optimizer is told on the device to leave the weights alone. `scaled`: a gradient scaler is at work, so a gradient that is not
    finite means a skipped step, an error only after `max_skipped_steps` in a row.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, *, scaled: bool, max_skipped_steps: int) -> None:
        self.scaled = scaled
        self.skipped_steps = 0
        self._max_skipped_steps = max_skipped_steps
        self._skipped_in_a_row = 0
        self._optimizer = optimizer
        self._at_once = device.type == "cpu" or not (scaled or is_fused(optimizer))
        self._pending: list[tuple[int, Tensor]] = []
        self._frozen = torch.zeros((), dtype=torch.bool, device=device)

    def observe(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Note the loss and gradient norm (scalars on the device) of step number `step`, between its backward and its update."""
        self._pending.append((step, torch.stack((loss, norm))))
        if self._at_once or len(self._pending) >= CHECK_INTERVAL:
            self.check()
        elif not self.scaled:
            self._frozen = self._frozen | ~torch.isfinite(loss + norm)
            self._optimizer.found_inf = self._frozen.float()  # type: ignore[attr-defined]  # the fused kernel's own switch, which GradScaler uses too

    def check(self) -> None:
        """Wait for the device and raise NonFiniteError if a step so far went wrong."""
        if not self._pending:
            return
        steps, values = [step for step, _ in self._pending], torch.stack([value for _, value in self._pending]).tolist()
        self._pending.clear()
        for step, (loss, norm) in zip(steps, values, strict=True):
            self._judge(step, loss, norm)

    def _judge(self, step: int, loss: float, norm: float) -> None:
        if not math.isfinite(loss):
            self._fail(step, "loss", f"the loss of step {step} is {loss}; training stops before its update: {ADVICE}")
        elif math.isfinite(norm):
            self._skipped_in_a_row = 0
        elif self.scaled:
            self._skip(step)
        else:
            self._fail(step, "grad_norm", f"the gradient norm of step {step} is {norm}; training stops before its update: {ADVICE}")

    def _skip(self, step: int) -> None:
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self._max_skipped_steps:
            self._fail(
                step,
                "grad_norm",
                f"fp16 gradients overflowed in {self._skipped_in_a_row} steps in a row (train.loss_scale.max_skipped_steps), the last being step {step}; "
                "nothing is learnt: lower train.loss_scale.initial, or set train.precision to bf16 or fp32",
            )

    def _fail(self, step: int, figure: str, message: str) -> NoReturn:
        raise NonFiniteError(step, figure, message, self.skipped_steps)
