"""What every variant is measured on: perplexity on the test split by the evaluation's own code, and the prompt for the speeds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from torch import nn

from stages.data.batches import Blocks
from stages.data.shards import TOKENS_FOLDER, Shard, open_split, read_meta
from stages.evaluation.likelihood import measure
from stages.evaluation.scoring import logits_scorer
from stages.evaluation.windows import Windows, hidden, sliding
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
        return measure(logits_scorer(session), _windows(params, shard, folder), SPLIT).perplexity

    return Yardstick(perplexity, prompt, decode)


def _windows(params: Params, shard: Shard, folder: Path) -> Iterator[Windows]:
    """Windows of the split side by side, up to quantize.max_tokens; those of the stage evaluate overlap, which takes twice the time to show the same change."""
    model, most = params.model, params.quantize.max_tokens
    if model.objective == "causal":
        return sliding(shard, sequence_length=model.sequence_length, stride=model.sequence_length, batch_size=WINDOWS, max_tokens=most)
    meta = read_meta(folder)
    blocks = Blocks(
        shard,
        sequence_length=model.sequence_length,
        objective=model.objective,
        seed=params.seed,
        mask_token=meta.mask_token,
        vocab_size=meta.vocab_size,
        masked_share=model.masked_share,
        partial=True,
    )
    return hidden(blocks, WINDOWS, most)
