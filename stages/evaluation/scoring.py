"""Token losses from whatever holds the model: a PyTorch network or any function that gives logits."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from stages.data.batches import IGNORED
from stages.models.heads import token_scores

CHUNK = 512  # positions whose logits exist at one time


class Scorer(Protocol):
    """Scores every labelled position of some windows."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Of `inputs` and `labels`, both (windows, sequence) int64 on the CPU, labels aligned with the hidden states: the losses in nats (float32)
        and whether the likeliest token is the label (bool), (windows, sequence) on the CPU; 0 and False where the label is IGNORED.
        """


def model_scorer(model: nn.Module, device: torch.device) -> Scorer:
    """Scores with a network in evaluation mode on `device`, without ever holding the full logits."""

    def score(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        predicted = int((labels != IGNORED).sum())
        losses, hits = token_scores(model, inputs.to(device), labels.to(device), chunk=CHUNK, predicted=predicted)
        return losses.cpu(), hits.cpu()

    return score


def logits_scorer(logits_of: Callable[[NDArray[np.int64]], ArrayLike]) -> Scorer:
    """Scores with a function from token ids (windows, sequence) to logits (windows, sequence, vocabulary), such as an ONNX Runtime session."""

    def score(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.from_numpy(np.asarray(logits_of(inputs.numpy()))).flatten(0, 1).float()  # (positions, vocabulary)
        losses = F.cross_entropy(logits, labels.flatten(), reduction="none", ignore_index=IGNORED)
        return losses.view_as(labels), (logits.argmax(-1) == labels.flatten()).view_as(labels)

    return score
