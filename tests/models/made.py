"""Small networks and batches, made on the spot."""

from typing import Any

import torch
from torch import Tensor

from stages.models.build import build
from stages.models.heads import IGNORED
from stages.params import Model

VOCAB = 97
TESTED = [("gpt2", "causal"), ("llama", "causal"), ("bert", "masked")]
ALSO = [
    ("roberta", "masked"),
    ("distilbert", "masked"),
    ("albert", "masked"),
    ("modernbert", "masked"),
    ("opt", "causal"),
    ("gpt_neox", "causal"),
    ("gptj", "causal"),
    ("qwen2", "causal"),
    ("qwen3", "causal"),
    ("mistral", "causal"),
    ("bert", "causal"),
]
SCALED = [("cohere", "causal"), ("granite", "causal"), ("esm", "masked")]  # logits are scaled behind the head, or get their bias there
CAPPED = ("gemma2", "causal")  # logits are capped behind the head; eager attention only
ALL = TESTED + ALSO + SCALED


def tiny(architecture: str = "gpt2", objective: str = "causal", **changes: Any) -> Model:
    """The section `model` of a network of two layers, 32 wide."""
    values = {
        "objective": objective,
        "architecture": architecture,
        "init": "scratch",
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "sequence_length": 24,
        "dropout": 0.0,
        "attention": "sdpa",
        "fused_activation": True,
        "masked_share": 0.15,
    }
    return Model.model_validate(values | changes)


def network(architecture: str = "gpt2", objective: str = "causal", seed: int = 1, **changes: Any) -> Any:
    """The network, in evaluation mode; weights larger than usual, so that no logit is close to another."""
    model = build(tiny(architecture, objective, **changes), vocab_size=VOCAB, end_of_text=0, pad_token=1, seed=seed).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)
    return model


def batch(rows: int = 3, length: int = 24, seed: int = 5, ignored: int = 7) -> tuple[Tensor, Tensor]:
    """Token ids and labels, (rows, length) each; the first `ignored` labels of the first row and the last of every row are IGNORED."""
    tokens = torch.randint(3, VOCAB, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    labels = tokens[:, 1:].clone()
    labels[0, :ignored] = IGNORED
    labels[:, -1] = IGNORED
    return tokens[:, :-1].contiguous(), labels
