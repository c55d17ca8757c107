"""Tiny networks, batches and params for the tests of training."""

from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML

from stages.data.batches import IGNORED, Batch
from stages.models.build import build
from stages.params import Params, parse
from stages.training.optimizer import adamw
from tests.conftest import merge

ROOT = Path(__file__).parent.parent.parent
VOCABULARY, SEQUENCE = 97, 16
ARCHITECTURES = {"gpt2": "causal", "llama": "causal", "bert": "masked"}
SMALL = {
    "device": "cpu",
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "sequence_length": SEQUENCE},
    "train": {"max_tokens": 1024, "batch_size": 4, "validation_interval": 8, "validation_tokens": None},
}


def make_params(changes: dict[str, Any] | None = None) -> Params:
    """The project's own params.yaml, made small, with `changes` over it."""
    values = YAML(typ="safe", pure=True).load((ROOT / "params.yaml").read_text("utf-8"))
    merge(values, SMALL)
    merge(values, changes or {})
    return parse(values)


def make_model(architecture: str = "gpt2", **changes: Any) -> Any:
    """A network of 2 layers, width 32."""
    model = {"architecture": architecture, "objective": ARCHITECTURES[architecture], **changes}
    return build(make_params({"model": model}).model, vocab_size=VOCABULARY, end_of_text=0, pad_token=1, seed=7)


def make_adamw(model: torch.nn.Module, **changes: Any) -> torch.optim.AdamW:
    settings = {"learning_rate": 1e-3, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "fused": True}
    return adamw(model, **{**settings, **changes})


def make_batch(inputs: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None = None, epoch: int = 0, start: int = 0) -> Batch:
    """A batch that counts itself."""
    tokens = inputs.numel() if attention_mask is None else int(attention_mask.sum())
    return Batch(inputs, labels, attention_mask, epoch, start, int((labels != IGNORED).sum()), tokens)


def padded(lengths: list[int], objective: str = "causal", epoch: int = 0, seed: int = 0) -> Batch:
    """One sequence for each of `lengths`, padded on the right to SEQUENCE; masked: about every third token is to be predicted."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCABULARY, (len(lengths), SEQUENCE + 1), generator=generator)
    inputs, labels = tokens[:, :-1].clone(), tokens[:, 1:].clone()
    real = torch.arange(SEQUENCE)[None] < torch.tensor(lengths)[:, None]  # (batch, sequence)
    if objective == "masked":
        hidden = torch.rand(inputs.shape, generator=generator) < 0.3
        labels = torch.where(hidden, inputs, IGNORED)
        inputs[hidden] = 2
    labels[~real], inputs[~real] = IGNORED, 1
    return make_batch(inputs, labels, None if bool(real.all()) else real, epoch)


def whole(count: int, objective: str = "causal", epoch: int = 0, seed: int = 0) -> Batch:
    """`count` sequences without padding."""
    return padded([SEQUENCE] * count, objective, epoch, seed)


def cut(batch: Batch, size: int) -> list[Batch]:
    """The same sequences in micro-batches of `size`; the last may be smaller."""
    masks = batch.attention_mask
    return [
        make_batch(batch.inputs[i : i + size], batch.labels[i : i + size], None if masks is None else masks[i : i + size], batch.epoch, batch.start + i)
        for i in range(0, len(batch.inputs), size)
    ]


def flat(tensors: Any) -> torch.Tensor:
    """All `tensors` as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
