"""From hidden states to the cross entropy, in chunks: the full logits never exist."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stages.models.forward import before_head, has_plain_head, logits_function, output_head

__all__ = ["IGNORED", "has_plain_head", "summed_loss", "token_losses", "token_scores"]

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
    return _checkpointed_loss(logits_function(model), rows, targets, chunk)


def token_scores(
    model: nn.Module, inputs: Tensor, labels: Tensor, attention_mask: Tensor | None = None, *, chunk: int, predicted: int | None = None
) -> tuple[Tensor, Tensor]:
    """For each position its cross entropy in nats (float32) and whether the likeliest token is the label (bool).

    Both (batch, sequence); 0 and False where the label is IGNORED. Arguments as for `summed_loss`; no gradient.
    """
    with torch.no_grad():
        rows, targets = _rows(model, inputs, labels, attention_mask, predicted)
        logits_of = logits_function(model)
        losses, hits = [], []
        for part, target in zip(torch.split(rows, chunk), torch.split(targets, chunk), strict=True):
            logits = logits_of(part).float()  # (chunk, vocabulary)
            losses.append(F.cross_entropy(logits, target, reduction="none", ignore_index=IGNORED))
            hits.append(logits.argmax(-1) == target)
        return _placed(torch.cat(losses), labels, predicted), _placed(torch.cat(hits), labels, predicted)


def token_losses(model: nn.Module, inputs: Tensor, labels: Tensor, attention_mask: Tensor | None = None, *, chunk: int, predicted: int | None = None) -> Tensor:
    """The first half of `token_scores`: (batch, sequence), float32, 0 where the label is IGNORED."""
    return token_scores(model, inputs, labels, attention_mask, chunk=chunk, predicted=predicted)[0]


def _autocast(rows: Tensor) -> bool:
    return torch.is_autocast_enabled(rows.device.type)


def _rows(model: nn.Module, inputs: Tensor, labels: Tensor, attention_mask: Tensor | None, predicted: int | None) -> tuple[Tensor, Tensor]:
    """What enters the head, (positions, hidden), and its labels (positions,); only predicted positions where their number is known."""
    rows = before_head(model, inputs, attention_mask).flatten(0, 1)
    targets = labels.flatten()
    if predicted is None or predicted == targets.numel() or labels.device.type == "mps":  # Metal has no nonzero_static
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


def _checkpointed_loss(logits_of: Callable[[Tensor], Tensor], rows: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The sum of the cross entropy; each chunk's logits are computed again for the backward pass instead of kept."""
    total = rows.new_zeros((), dtype=torch.float32)
    for part, target in zip(torch.split(rows, chunk), torch.split(targets, chunk), strict=True):
        total = total + checkpoint(_chunk_loss, logits_of, part, target, use_reentrant=False, preserve_rng_state=False)
    return total


def _chunk_loss(logits_of: Callable[[Tensor], Tensor], rows: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits_of(rows).float(), targets, reduction="sum", ignore_index=IGNORED)
