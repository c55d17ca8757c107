"""Conv1D to nn.Linear, exactly: what quantizes and exports nn.Linear then sees GPT-2's layers too."""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D


def linearize(model: nn.Module) -> int:
    """Replace every Conv1D in `model`, in place, by the nn.Linear that computes the same; returns how many there were."""
    found = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children() if isinstance(child, Conv1D)]
    for parent, name, layer in found:
        setattr(parent, name, _linear(layer))
    return len(found)


def _linear(layer: Conv1D) -> nn.Linear:
    width, outputs = layer.weight.shape  # Conv1D keeps its weight as (in, out), Linear as (out, in)
    linear = nn.Linear(width, outputs, device="meta", dtype=layer.weight.dtype)
    linear.weight = nn.Parameter(layer.weight.detach().t().contiguous(), requires_grad=layer.weight.requires_grad)
    linear.bias = nn.Parameter(layer.bias.detach().clone(memory_format=torch.contiguous_format), requires_grad=layer.bias.requires_grad)
    return linear.train(layer.training)
