"""Watches every step's loss and gradient for values that are not finite, without waiting for the device before somebody asks."""

import math
import time
from typing import NoReturn

import torch
from torch import Tensor

from stages.training.optimizer import is_fused
from stages.training.readback import Readback
from stages.training.step import NonFiniteError

CHECK_INTERVAL = 100  # steps between two checks where a check waits for the device and nobody reads a loss
ADVICE = "lower train.learning_rate, lengthen train.warmup or set train.clip_norm"


class Guard:
    """Keeps each step's loss and gradient norm on the device until `check` reads them and raises NonFiniteError for the first bad one.

    The bad step's update, and any after it, never reach the weights: where a look is free (CPU) or nothing else helps, each step is checked before its
    update; else the fused optimizer is told on the device to leave the weights alone. `scaled`: a gradient scaler is at work, so a gradient that is not
    finite means a skipped step, an error only after `max_skipped_steps` in a row. `waited_seconds`: what all checks together have waited for the device.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, *, scaled: bool, max_skipped_steps: int) -> None:
        self.scaled = scaled
        self.skipped_steps = 0
        self.waited_seconds = 0.0
        self._max_skipped_steps = max_skipped_steps
        self._skipped_in_a_row = 0
        self._optimizer = optimizer
        self._at_once = device.type == "cpu" or not (scaled or is_fused(optimizer))
        self._pending: dict[int, Readback] = {}  # by step
        self._frozen = torch.zeros((), dtype=torch.bool, device=device)

    def observe(self, step: int, loss: Tensor, norm: Tensor) -> Readback:
        """Note the loss and gradient norm (scalars on the device) of step number `step`, between its backward and its update; returns the two."""
        figures = self._pending[step] = Readback(torch.stack((loss, norm)))
        if self._at_once or len(self._pending) >= CHECK_INTERVAL:
            self.check()
        elif not self.scaled:
            self._frozen = self._frozen | ~torch.isfinite(loss + norm)
            self._optimizer.found_inf = self._frozen.float()  # type: ignore[attr-defined]  # the fused kernel's own switch, which GradScaler uses too
        return figures

    def check(self, last: int | None = None) -> None:
        """Wait for the steps so far, up to number `last`, and raise NonFiniteError if one of them went wrong."""
        for step in list(self._pending):
            if last is None or step <= last:
                self._judge(step, *self._read(self._pending.pop(step)))

    def _read(self, figures: Readback) -> list[float]:
        began = time.perf_counter()
        values = figures.read()
        self.waited_seconds += time.perf_counter() - began
        return values

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
