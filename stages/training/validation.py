"""The mean loss over batches that are the same each time."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from stages.data.batches import Batch
from stages.models.heads import summed_loss
from stages.training.precision import Precision


@torch.inference_mode()
def mean_loss(model: nn.Module, batches: Iterable[Batch], *, precision: Precision, device: torch.device, loss_chunk: int) -> float:
    """Nats per predicted token over all `batches`, in evaluation mode, whatever their sizes; the model's mode is put back.

    Waits for the device once, at the end. Raises ValueError when no batch holds a token to predict.
    """
    training = model.training
    model.eval()
    sums, predicted = [], 0
    for batch in batches:
        batch = batch.to(device, non_blocking=True)
        with precision.autocast():
            sums.append(summed_loss(model, batch.inputs, batch.labels, batch.attention_mask, chunk=loss_chunk, predicted=batch.predicted))
        predicted += batch.predicted
    model.train(training)
    if predicted == 0:
        raise ValueError(
            "the validation split has no token to predict; hold out more in data.validation, or raise train.validation_tokens or model.masked_share"
        )
    return math.fsum(torch.stack(sums).tolist()) / predicted
