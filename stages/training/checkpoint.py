"""Activation checkpointing: layers that are computed a second time in the backward instead of keeping what they computed."""

from typing import Any, Literal

from torch import nn


def checkpoint_layers(model: Any, layers: Literal["none", "all"] | int) -> int:
    """Recompute none, all or every n-th layer of a transformers model (the first, the n+1-th, ...); returns how many.

    Random numbers are restored for the second computation, so the gradient is the same, with dropout too. Raises ValueError when the architecture
    cannot do it, or has fewer than n layers.
    """
    if layers == "none":
        return 0
    every = 1 if layers == "all" else layers
    repeated = [module for module in model.modules() if is_layer(module)]
    if every > 1 and every > len(repeated):
        found = f"has {len(repeated)} layers that can be told apart; use none, all" + (f" or at most {len(repeated)}" if repeated else "")
        raise ValueError(f"train.activation_checkpointing is {layers}, but {type(model).__name__} {found}")
    try:
        model.activation_checkpointing_enable(every_n_layers=every)
    except ValueError as error:
        raise ValueError(f"train.activation_checkpointing is {layers}, but: {error}; use none") from None
    model.disable_input_require_grads()  # needed by the reentrant kind only, and it would break the compiled graph
    return sum(bool(module.gradient_checkpointing) for module in repeated) if repeated else model.config.num_hidden_layers


def is_layer(module: nn.Module) -> bool:
    """Whether `module` is one of the repeated layers of a transformers model (known by its base class, since only models/ imports transformers)."""
    return any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(module).__mro__)
