"""torch.compile on what is compute-heavy: the layers, in place, so that weights keep their names and the chunked head stays as it is."""

import time
from typing import Any, Literal

import torch
from torch import nn

from stages.data.batches import Batch
from stages.models.heads import has_plain_head, summed_loss
from stages.training.checkpoint import is_layer
from stages.training.precision import Precision

Mode = Literal["default", "reduce-overhead", "max-autotune"]


def compile_layers(model: Any, mode: Mode) -> None:
    """Compile `model` in place; the work is done in the first forward, see `warm_up`.

    `default` compiles a layer once and uses it for all of them, so that the time does not grow with depth. The other modes record CUDA graphs, which
    must not feed one another from layer to layer (pytorch issue 152887): they take the whole body as one.
    """
    has_plain_head(model)  # found out by a look at the model's parts, better taken while they are not compiled
    layers = [module for module in model.modules() if is_layer(module)]
    for module in layers if layers and mode == "default" else [model.base_model]:
        module.compile(mode=mode)


def warm_up(model: nn.Module, batch: Batch, *, precision: Precision, loss_chunk: int) -> float:
    """Compile by a forward and backward in training mode (twice: CUDA graphs record in the second) and a forward in evaluation mode; seconds that it took.

    Leaves no gradient behind, and weights and batches as they were. Raises ValueError when the compiler fails, as where no C++ compiler is installed.
    """
    began = time.perf_counter()
    try:
        for training in (True, True, False):
            model.train(training)
            with torch.set_grad_enabled(training), torch.inference_mode(not training), precision.autocast():
                loss = summed_loss(model, batch.inputs, batch.labels, batch.attention_mask, chunk=loss_chunk, predicted=batch.predicted)
            if training:
                loss.backward()  # type: ignore[no-untyped-call]
    except torch._dynamo.exc.TorchDynamoException as error:
        raise ValueError(
            f"train.compile is on, but torch could not compile the model ({_first_line(error)}); install a C++ compiler (g++) or set it to null"
        ) from error
    finally:
        model.zero_grad(set_to_none=True)
    return time.perf_counter() - began


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
