"""What every variant is measured on: perplexity on the test split by the evaluation's own code, and the prompt for the speeds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from torch import nn

from stages.data.shards import TOKENS_FOLDER, open_split, read_meta
from stages.evaluation.likelihood import measure
from stages.evaluation.scoring import logits_scorer
from stages.evaluation.windows import split_windows
from stages.models.sizes import positions
from stages.params import Params
from stages.quantization.runtimes import Session
from stages.quantization.speed import fitting_lengths

SPLIT: Final = "test"
WINDOWS = 1  # at a time: dynamic int8 takes one scale for all of a batch, so a window's loss would depend on its neighbours


@dataclass(frozen=True, slots=True)
class Yardstick:
    """`perplexity` of a session, ValueError where it is not finite; a prompt (1, tokens); and how many tokens to generate after it, 0 for masked models."""

    perplexity: Callable[[Session], float]
    prompt: npt.NDArray[np.int64]
    decode_tokens: int


def yardstick(params: Params, model: nn.Module, folder: Path = TOKENS_FOLDER) -> Yardstick:
    """The measures that params.yaml asks for on the test split in `folder`; lengths that `model` cannot take are cut down."""
    shard = open_split(folder, SPLIT)
    causal = params.model.objective == "causal"
    prefill, decode = fitting_lengths(params.quantize.prefill_tokens, params.quantize.decode_tokens if causal else 0, positions(cast(Any, model).config))
    prompt = shard.read(0, min(prefill, shard.tokens))[None]  # (1, prefill)

    def perplexity(session: Session) -> float:
        # Side by side, not overlapping as those of the stage evaluate, which take twice the time to show the same change.
        most, stride = params.quantize.max_tokens, params.model.sequence_length
        windows = split_windows(params, read_meta(folder), shard, stride=stride, batch_size=WINDOWS, max_tokens=most)
        return measure(logits_scorer(session), windows, SPLIT).perplexity

    return Yardstick(perplexity, prompt, decode)
