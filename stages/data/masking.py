"""Which tokens of a block a masked model has to predict, drawn from a counter-based generator keyed by (seed, epoch, sample)."""

from typing import Any

import numpy as np

Tokens = np.ndarray[Any, np.dtype[np.int64]]
REPLACED_BY_MASK, REPLACED_BY_RANDOM = 0.8, 0.1


def mask(tokens: Tokens, *, seed: int, epoch: int, sample: int, share: float, mask_token: int, vocab_size: int, ignored: int) -> tuple[Tokens, Tokens]:
    """Inputs and labels (sequence,) of one block, as BERT's recipe has it (Devlin et al. 2019, section 3.1).

    Each position is chosen with probability `share`; of the chosen, 80 % become `mask_token`, 10 % a random id, 10 % stay. Where the draw
    chooses none, the position with the smallest draw is chosen, so that no block is without a prediction. Labels are `ignored` elsewhere.
    """
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=np.array([0, 0, 0, sample], np.uint64)))
    chance, action = generator.random((2, len(tokens)))
    random_tokens = generator.integers(0, vocab_size, len(tokens))
    chosen = chance < share
    chosen[chance.argmin()] |= not chosen.any()
    labels = np.where(chosen, tokens, ignored)
    inputs = np.where(chosen & (action < REPLACED_BY_MASK), mask_token, tokens)
    random = chosen & (action >= REPLACED_BY_MASK) & (action < REPLACED_BY_MASK + REPLACED_BY_RANDOM)
    return np.where(random, random_tokens, inputs), labels
