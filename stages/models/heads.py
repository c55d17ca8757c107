"""From hidden states to the cross entropy, in chunks: the full logits never exist."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from stages.models.attention import whole_blocks

IGNORED = -100  # a label at which nothing is predicted
FUSED = hasattr(F, "linear_cross_entropy")


def summed_loss(model: nn.Module, inputs: Tensor, labels: Tensor, attention_mask: Tensor | None = None, *, chunk: int, predicted: int | None = None) -> Tensor:
    """The sum of the cross entropy, in nats, over all labels but IGNORED: a float32 scalar.

    `inputs` and `labels` are (batch, sequence), the labels aligned with the hidden states (already shifted for a causal model);
    `attention_mask` is (batch, sequence), or None for whole blocks without padding. Logits of `chunk` positions exist at one time.
    `predicted`, the number of labels that are not IGNORED, lets the head skip the other positions without asking the device.
    """
    rows, targets = _rows(model, inputs, labels, attention_mask, predicted)
    head = output_head(model)
    if FUSED and has_plain_head(model) and isinstance(head.weight, Tensor) and rows.dtype == torch.float32 and not _autocast(rows):
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
        return F.linear_cross_entropy(rows, head.weight, targets, linear_bias=head.bias, reduction="sum", ignore_index=IGNORED, options=options)
    return _checkpointed_loss(_logits(model), rows, targets, chunk)


def token_scores(
    model: nn.Module, inputs: Tensor, labels: Tensor, attention_mask: Tensor | None = None, *, chunk: int, predicted: int | None = None
) -> tuple[Tensor, Tensor]:
    """For each position its cross entropy in nats (float32) and whether the likeliest token is the label (bool).

    Both (batch, sequence); 0 and False where the label is IGNORED. Arguments as for `summed_loss`; no gradient.
    """
    with torch.no_grad():
        rows, targets = _rows(model, inputs, labels, attention_mask, predicted)
        logits_of = _logits(model)
        losses, hits = [], []
        for part, target in zip(torch.split(rows, chunk), torch.split(targets, chunk), strict=True):
            logits = logits_of(part).float()  # (chunk, vocabulary)
            losses.append(F.cross_entropy(logits, target, reduction="none", ignore_index=IGNORED))
            hits.append(logits.argmax(-1) == target)
        return _placed(torch.cat(losses), labels, predicted), _placed(torch.cat(hits), labels, predicted)


def token_losses(model: nn.Module, inputs: Tensor, labels: Tensor, attention_mask: Tensor | None = None, *, chunk: int, predicted: int | None = None) -> Tensor:
    """The first half of `token_scores`: (batch, sequence), float32, 0 where the label is IGNORED."""
    return token_scores(model, inputs, labels, attention_mask, chunk=chunk, predicted=predicted)[0]


def unwrap(model: nn.Module) -> PreTrainedModel:
    """The network inside a compiled or data-parallel wrapper."""
    while not isinstance(model, PreTrainedModel):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        assert isinstance(inner, nn.Module), f"no transformers model inside {type(model).__name__}"
        model = inner
    return model


def output_head(model: nn.Module) -> Any:
    """The last linear layer, hidden states to logits (a quantized one is no nn.Linear)."""
    head = unwrap(model).get_output_embeddings()
    if head is None:
        raise ValueError(f"model.architecture: {unwrap(model).config.model_type!r} has no output embedding to compute a token loss with; allowed: one that has")
    return head


def has_plain_head(model: nn.Module) -> bool:
    """Whether the logits are what the head returns; some architectures scale or cap them afterwards. Found out once a model."""
    network = unwrap(model)
    if "_has_plain_head" not in network.__dict__:
        network.__dict__["_has_plain_head"] = _returns_head_output(network)
    return bool(network.__dict__["_has_plain_head"])


def _autocast(rows: Tensor) -> bool:
    return torch.is_autocast_enabled(rows.device.type)


def _rows(model: nn.Module, inputs: Tensor, labels: Tensor, attention_mask: Tensor | None, predicted: int | None) -> tuple[Tensor, Tensor]:
    """What enters the head, (positions, hidden), and its labels (positions,); only predicted positions where their number is known."""
    rows = _before_head(model, inputs, attention_mask).flatten(0, 1)
    targets = labels.flatten()
    if predicted is None or predicted == targets.numel():
        return rows, targets
    where = _where(labels, predicted)
    return rows[where], targets[where]


def _where(labels: Tensor, predicted: int) -> Tensor:
    return torch.nonzero_static(labels.flatten() != IGNORED, size=predicted).squeeze(1)


def _placed(values: Tensor, labels: Tensor, predicted: int | None) -> Tensor:
    """`values` of the rows, back at their places in (batch, sequence)."""
    if values.numel() != labels.numel():
        assert predicted is not None
        values = values.new_zeros(labels.numel()).index_put((_where(labels, predicted),), values)
    return values.view_as(labels)


def _before_head(model: nn.Module, inputs: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The model's own forward pass up to its head: (batch, sequence, hidden)."""
    network, head = unwrap(model), output_head(model)
    plain = has_plain_head(model)
    with whole_blocks(network) if attention_mask is None else nullcontext(), _as(head, _recording if not plain else _passing):
        output = model(input_ids=inputs, attention_mask=attention_mask)
    hidden: Tensor = output.logits if plain else head.__dict__.pop("_seen")
    return hidden


def _checkpointed_loss(logits_of: Callable[[Tensor], Tensor], rows: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The sum of the cross entropy; each chunk's logits are computed again for the backward pass instead of kept."""
    total = rows.new_zeros((), dtype=torch.float32)
    for part, target in zip(torch.split(rows, chunk), torch.split(targets, chunk), strict=True):
        total = total + checkpoint(_chunk_loss, logits_of, part, target, use_reentrant=False, preserve_rng_state=False)
    return total


def _chunk_loss(logits_of: Callable[[Tensor], Tensor], rows: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits_of(rows).float(), targets, reduction="sum", ignore_index=IGNORED)


def _logits(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The function from what enters the head, (positions, hidden), to the model's own logits (positions, vocabulary)."""
    head = output_head(model)
    return head if has_plain_head(model) else partial(_logits_through_tail, unwrap(model), head)


def _logits_through_tail(network: PreTrainedModel, head: Any, rows: Tensor) -> Tensor:
    """What the model's forward pass makes of the head's output for `rows`: scaled or capped logits."""
    logits = head(rows)[None]  # (1, positions, vocabulary)
    head.__dict__["_given"] = logits
    try:
        with _as(head, _giving):
            return _tail(network, len(rows)).logits[0]  # type: ignore[no-any-return]
    finally:
        del head.__dict__["_given"]


def _returns_head_output(network: PreTrainedModel) -> bool:
    """Runs what follows the body on one position: the very tensor that the head returned comes back, or something made of it."""
    head = output_head(network)
    with torch.no_grad(), _as(head, _recording):
        output = _tail(network, 1)
    return output.logits is head.__dict__.pop("_seen")


def _tail(network: PreTrainedModel, positions: int) -> Any:
    """The forward pass with a body that does nothing: (1, positions, hidden) zeros go on to whatever follows it."""
    body, parameter = network.base_model, next(network.parameters())
    assert body is not network, f"{type(network).__name__} does not tell its body from its head"
    zeros = torch.zeros(1, positions, network.config.hidden_size, dtype=parameter.dtype, device=parameter.device)
    body.__dict__["_given"] = zeros
    try:
        with _as(body, _idle):
            return network(input_ids=torch.zeros(1, positions, dtype=torch.long, device=parameter.device))
    finally:
        del body.__dict__["_given"]


class _BodyOutput(tuple[Tensor]):
    """A body's output with hidden states alone; whatever else is asked of it is None."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


@contextmanager
def _as(module: nn.Module, behaviour: Callable[[type], type]) -> Iterator[None]:
    """`module` with another forward, for a while. Its class changes, not the object: parameters, ties, hooks and compiled code stay."""
    kind, compiled = type(module), module.__dict__.pop("_compiled_call_impl", None)
    module.__class__ = behaviour(kind)
    try:
        yield
    finally:
        module.__class__ = kind
        if compiled is not None:
            module.__dict__["_compiled_call_impl"] = compiled


@cache
def _passing(kind: type) -> type:
    """The head returns what enters it."""
    return type(f"Passing{kind.__name__}", (kind,), {"forward": lambda self, hidden: hidden})


@cache
def _recording(kind: type) -> type:
    """The head returns what enters it, and remembers it."""

    def forward(self: nn.Module, hidden: Tensor) -> Tensor:
        self.__dict__["_seen"] = hidden
        return hidden

    return type(f"Recording{kind.__name__}", (kind,), {"forward": forward})


@cache
def _giving(kind: type) -> type:
    """The head returns logits that were computed before."""
    return type(f"Giving{kind.__name__}", (kind,), {"forward": lambda self, hidden: self.__dict__["_given"]})


@cache
def _idle(kind: type) -> type:
    """The body returns what it was given, without a forward pass."""
    return type(f"Idle{kind.__name__}", (kind,), {"forward": lambda self, *args, **kwargs: _BodyOutput((self.__dict__["_given"],))})
