"""A tiny model's parameters and random tokens to train it on."""

from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from stages.data.shards import SPLITS, Meta, read_meta
from stages.params import Params, parse
from tests.data.made import token_folder

ROOT = Path(__file__).parents[2]
TINY = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "sequence_length": 16},
    "train": {"max_tokens": 10_000, "batch_size": 4},
    "profile": {"warmup_steps": 2, "steps": 3, "top_operators": 5},
}


def tiny_params(**changes: dict[str, Any]) -> Params:
    """params.yaml with TINY and then `changes` over it, section by section."""
    values = YAML(typ="safe").load((ROOT / "params.yaml").read_text("utf-8"))
    values["device"] = "cpu"
    for section in (TINY, changes):
        for name, keys in section.items():
            assert keys.keys() <= values[name].keys()
            values[name] |= keys
    return parse(values)


def write_tokens(folder: Path, tokens: int = 4000, vocab_size: int = 64) -> Meta:
    """Random tokens, others in each split."""
    splits = {split: np.random.default_rng(seed).integers(3, vocab_size, tokens) for seed, split in enumerate(SPLITS)}
    return read_meta(token_folder(folder, splits, vocab_size))
