"""Tokens per second as a share of what this machine's matmuls can do: model FLOPs, the measured matmul rate, MFU."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_SAMPLES = 7
_SAMPLE_SECONDS, _PRODUCT_SECONDS, _ALL_SAMPLES_SECONDS = 0.02, 0.2, 1.0
_LARGE = {"cpu": 2048, "cuda": 8192, "mps": 4096}  # side of a square matmul that shows the device at its best

FORMULA = (
    "6 x parameters of matrix products (2 forward, 4 backward; the head only at predicted positions, look-ups in embedding tables not at all)"
    " + 12 x layers x heads x head size x keys a position attends to ((sequence + 1) / 2 causal, sequence otherwise);"
    " recomputation under activation checkpointing is not counted (MFU, not HFU)"
)


@dataclass(frozen=True, slots=True)
class ModelFlops:
    """Floating-point operations that training on one token takes by the model's mathematics, forward and backward; a multiply-add is two."""

    body: float
    head: float
    attention: float

    @property
    def per_token(self) -> float:
        return self.body + self.head + self.attention


def model_flops(model: nn.Module, sequence_length: int, *, causal: bool, predicted_share: float = 1.0) -> ModelFlops:
    """FLOPs for each trained token of sequences of `sequence_length`; the formula is `FORMULA` in words.

    Matrix products: 6 N, Kaplan et al. 2020 (arXiv:2001.08361), where a tied head counts although it is stored once with the embedding.
    Attention: 12 L H Q T, Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B); unlike PaLM, the half that a causal mask removes is
    not counted, so the figure is the lower one. `predicted_share`: predicted positions / tokens, 1 for a causal model. Norms, activations
    and softmax are left out (under 1 %). What keeps its weights outside of 2-D `weight`s of modules (fused experts) is not seen.
    """
    head = _head(model)
    body = sum(weight.numel() for module, weight in _matmuls(model) if module is not head)
    config: Any = model.config
    hidden = config.num_attention_heads * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    keys = (sequence_length + 1) / 2 if causal else sequence_length
    return ModelFlops(
        body=6.0 * body,
        head=6.0 * predicted_share * sum(weight.numel() for module, weight in _matmuls(model) if module is head),
        attention=12.0 * config.num_hidden_layers * hidden * keys,
    )


def matmul_shapes(model: nn.Module) -> dict[tuple[int, int], int]:
    """Input and output width of the model's matrix products -> the parameters in products of that shape, head included."""
    shapes: dict[tuple[int, int], int] = {}
    for module, weight in _matmuls(model):
        rows, columns = weight.shape
        shape = (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)  # Conv1D stores (input, output)
        shapes[shape] = shapes.get(shape, 0) + weight.numel()
    return shapes


def matmul_rate(rows: int, inner: int, columns: int, *, dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of (rows, inner) @ (inner, columns) on this machine now: the median of several samples of at least 20 ms, after a warm-up.

    Fewer rows stand for all where those would take longer than a fifth of a second, as bf16 does on CPUs without instructions for it.
    """
    left, right = torch.randn(rows, inner, device=device).to(dtype), torch.randn(inner, columns, device=device).to(dtype)
    result = torch.empty(rows, columns, dtype=dtype, device=device)

    def seconds(taken: int, count: int = 1) -> float:
        _synchronize(device)
        started = time.perf_counter()
        for _ in range(count):
            torch.mm(left[:taken], right, out=result[:taken])
        _synchronize(device)
        return time.perf_counter() - started

    taken = min(8, rows)
    seconds(taken)
    while taken < rows and seconds(taken) < _PRODUCT_SECONDS / 2:
        taken = min(2 * taken, rows)
    count = max(1, round(_SAMPLE_SECONDS / max(seconds(taken), 1e-7)))
    samples = [seconds(taken, count)]
    while len(samples) < _SAMPLES and sum(samples) < _ALL_SAMPLES_SECONDS:
        samples.append(seconds(taken, count))
    return 2.0 * taken * inner * columns * count / statistics.median(samples)


def large_matmul_rate(*, dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of a large square product: what MFU is a share of."""
    side = _LARGE.get(device.type, 2048)
    return matmul_rate(side, side, side, dtype=dtype, device=device)


def model_matmul_rate(model: nn.Module, tokens: int, *, dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of the model's own products, back to back, on `tokens` positions: the most that its shapes let this device reach."""
    shapes = matmul_shapes(model)
    seconds = sum(2.0 * tokens * size / matmul_rate(tokens, *shape, dtype=dtype, device=device) for shape, size in shapes.items())
    return 2.0 * tokens * sum(shapes.values()) / seconds


def _matmuls(model: nn.Module) -> Iterator[tuple[nn.Module, torch.Tensor]]:
    """Modules that multiply by a matrix: every 2-D `weight` that is no look-up table."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.dim() == 2 and not isinstance(module, nn.Embedding):
            yield module, weight


def _head(model: nn.Module) -> nn.Module | None:
    find = getattr(model, "get_output_embeddings", None)
    head: nn.Module | None = None if find is None else find()
    return head


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
