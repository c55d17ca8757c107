"""The learning rate as a function of how far along the training is."""

import math
from collections.abc import Callable
from typing import Literal

from stages.params import Train

Schedule = Callable[[float], float]


def schedule(
    shape: Literal["cosine", "warmup_stable_decay", "constant"], *, peak: float, warmup: float = 0.0, decay: float = 0.0, final: float = 0.0
) -> Schedule:
    """A function of progress (0 to 1, a share of the length) with the learning rate as its value.

    It rises in a straight line from 0 to `peak` over the first `warmup` of the length. Then `cosine` falls along half a cosine to `final` x `peak`
    at the end (Loshchilov and Hutter, 2017); `warmup_stable_decay` stays at `peak` and falls in a straight line to `final` x `peak` over
    the last `decay` of the length (Hu et al., 2024); `constant` stays. `fit` asks for the middle of a step, so the first rate is above 0.
    """

    def shrink(progress: float) -> float:
        if shape == "cosine":
            done = (progress - warmup) / (1 - warmup)
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
        if shape == "warmup_stable_decay" and progress > 1 - decay:
            return final + (1 - final) * (1 - progress) / decay
        return 1.0

    def learning_rate(progress: float) -> float:
        progress = min(max(progress, 0.0), 1.0)
        return peak * (progress / warmup if progress < warmup else shrink(progress))

    return learning_rate


def from_params(train: Train) -> Schedule:
    """The schedule that params.yaml asks for."""
    return schedule(train.schedule, peak=train.learning_rate, warmup=train.warmup, decay=train.decay, final=train.final_learning_rate)
