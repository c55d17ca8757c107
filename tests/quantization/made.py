"""Small trained models in their folders, and test splits to measure them on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from ruamel.yaml import YAML

from stages.models.build import build
from stages.models.storage import save
from stages.params import Params, parse
from tests.conftest import merge
from tests.data.made import token_folder

ROOT = Path(__file__).parent.parent.parent
VOCABULARY, SEQUENCE, WIDTH = 512, 32, 64
OBJECTIVES = {"gpt2": "causal", "llama": "causal", "bert": "masked"}
SMALL = {
    "model": {"num_layers": 1, "hidden_size": WIDTH, "num_heads": 4, "sequence_length": SEQUENCE},
    "quantize": {"max_tokens": 512, "prefill_tokens": 16, "decode_tokens": 4},
}


def make_params(architecture: str = "gpt2", changes: dict[str, Any] | None = None) -> Params:
    """The project's own params.yaml, made small, with `changes` over it."""
    values = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text("utf-8"))
    merge(values, SMALL)
    merge(values, {"model": {"architecture": architecture, "objective": OBJECTIVES[architecture]}})
    merge(values, changes or {})
    return parse(values)


def make_model(architecture: str = "gpt2", **sizes: Any) -> Any:
    """An untrained network of one layer, in evaluation mode."""
    params = make_params(architecture, {"model": sizes})
    return build(params.model, vocab_size=VOCABULARY, end_of_text=0, pad_token=1, seed=7).eval()


def token_stream(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Tokens with a law to learn: each is the one before plus 7 or 11, modulo the ids behind the special tokens."""
    steps = np.random.default_rng(3).choice([7, 11], size=count)
    return (np.cumsum(steps) % (VOCABULARY - 3)) + 3


def learn(model: Any, steps: int = 120) -> Any:
    """Teach a causal `model` that law, in a few seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    stream = torch.from_numpy(token_stream(20_000))
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(0, len(stream) - SEQUENCE - 1, (16,), generator=generator)
        rows = torch.stack([stream[start : start + SEQUENCE + 1] for start in starts.tolist()])  # (batch, sequence + 1)
        F.cross_entropy(model(input_ids=rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def save_model(model: Any, folder: Path) -> Path:
    """The model's folder as the stage train leaves it, with a stand-in for the tokenizer's files."""
    tokenizer = folder.parent / f"{folder.name}.tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    (tokenizer / "tokenizer.json").write_text("{}", encoding="utf-8")
    save(model, folder, tokenizer)
    return folder


def make_tokens(folder: Path, count: int = 2_000) -> Path:
    """A tokens folder whose splits obey the law."""
    return token_folder(folder, token_stream(count), VOCABULARY)


def some_tokens(batch: int, length: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Token ids (batch, length)."""
    return np.random.default_rng(seed).integers(3, VOCABULARY, (batch, length))
