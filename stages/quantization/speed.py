"""Tokens per second of several sessions side by side: reading a prompt at once (prefill), and going on one token at a time (decode)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from stages.quantization.runtimes import Session

ROUNDS = 7  # of which the first only warms up
REST_SECONDS = 0.02  # before each measurement: threads of the one before still turn in circles, waiting for work


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians over the rounds, for one sequence; decode is None where there is none (masked models)."""

    prefill_tokens_per_second: float
    decode_tokens_per_second: float | None


def fitting_lengths(prefill: int, decode: int, positions: int | None) -> tuple[int, int]:
    """The two lengths cut down to a model that takes `positions` tokens (None: any number); at least half stay for the prompt."""
    if positions is None or prefill + decode <= positions:
        return prefill, decode
    decode = min(decode, positions // 2)
    return min(prefill, positions - decode), decode


def side_by_side(sessions: Mapping[str, Session], prompt: npt.NDArray[np.int64], decode_tokens: int) -> dict[str, Speed]:
    """Measure every session in turn, round by round and in both directions, so that what else the machine does falls on all alike.

    `prompt` is (1, tokens); `decode_tokens` is 0 for models that cannot continue. Decoding is greedy.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sessions}
    for number in range(ROUNDS):
        for name in list(sessions)[:: 1 if number % 2 else -1]:
            seconds[name].append(_one(sessions[name], prompt, decode_tokens))
    return {name: _speed(measured[1:], prompt.shape[1], decode_tokens) for name, measured in seconds.items()}


def _speed(seconds: list[tuple[float, float]], prefill_tokens: int, decode_tokens: int) -> Speed:
    prefill, decode = (median(column) for column in zip(*seconds, strict=True))
    return Speed(prefill_tokens / prefill, decode_tokens / decode if decode_tokens else None)


def _one(session: Session, prompt: npt.NDArray[np.int64], decode_tokens: int) -> tuple[float, float]:
    """Seconds for the prompt, and for the tokens after it."""
    time.sleep(REST_SECONDS)
    began = time.perf_counter()
    if not decode_tokens:
        session(prompt)
        return time.perf_counter() - began, 0.0
    logits, cache = session.extend(prompt)
    read = time.perf_counter()
    for _ in range(decode_tokens):
        logits, cache = session.extend(logits[:, -1:].argmax(-1), cache)
    return read - began, time.perf_counter() - read
