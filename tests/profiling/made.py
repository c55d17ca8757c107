"""A tiny model's parameters and random tokens to train it on."""

from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from stages.data.shards import Duplicates, Meta, SplitMeta, write_meta
from stages.params import Params, parse

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
    folder.mkdir(parents=True)
    splits = {}
    for seed, name in enumerate(("train", "validation", "test")):
        np.random.default_rng(seed).integers(3, vocab_size, tokens, dtype=np.uint16).tofile(folder / f"{name}.bin")
        splits[name] = SplitMeta(documents=1, tokens=tokens, bytes=4 * tokens)
    meta = Meta(
        vocab_size=vocab_size,
        dtype="uint16",
        end_of_text=0,
        mask_token=2,
        pad_token=1,
        splits=splits,
        sources=[],
        tokenizer_sha256="",
        duplicates=Duplicates(validation_in_train=0, test_in_train=0, test_in_validation=0),
    )
    write_meta(meta, folder)
    return meta
