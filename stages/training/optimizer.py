"""AdamW with decay groups, and the global gradient norm it is clipped by."""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from stages.params import Train


def adamw(model: nn.Module, *, learning_rate: float, weight_decay: float, beta1: float, beta2: float, epsilon: float, fused: bool) -> torch.optim.AdamW:
    """AdamW over the trainable parameters, in two groups: what has two dimensions or more decays, embeddings included (as in GPT-2); biases and norms never.

    Tied weights count once. Where `fused` is asked for and the device has no fused kernel, a warning says so and the plain one is taken;
    `is_fused` tells which it is.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    reason = _no_fused_kernel(parameters) if fused else None
    if reason:
        warnings.warn(f"train.fused_optimizer is true, but there is no fused AdamW here ({reason}); the plain one is used", stacklevel=2)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2), eps=epsilon, fused=fused and reason is None)


def _no_fused_kernel(parameters: list[nn.Parameter]) -> str | None:
    """Why the fused kernel cannot update `parameters`, found out by an update of one zero of each kind; None: it can."""
    probes = [nn.Parameter(torch.zeros(1, dtype=dtype, device=device)) for device, dtype in {(p.device, p.dtype) for p in parameters}]
    for probe in probes:
        probe.grad = torch.zeros_like(probe)
    try:
        torch.optim.AdamW(probes, fused=True).step()
    except (RuntimeError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return None


def from_params(model: nn.Module, train: Train) -> torch.optim.AdamW:
    """The optimizer that params.yaml asks for."""
    return adamw(
        model,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        beta1=train.beta1,
        beta2=train.beta2,
        epsilon=train.epsilon,
        fused=train.fused_optimizer,
    )


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the update is one kernel, which can also leave the weights alone when told on the device."""
    return bool(optimizer.defaults.get("fused"))


def trained(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """All parameters that `optimizer` updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def global_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of all gradients taken as one vector: a scalar on their device."""
    return torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])


def clip(parameters: Iterable[nn.Parameter], norm: Tensor, max_norm: float | None) -> None:
    """Scale the gradients in place so that their global norm, now `norm`, is at most `max_norm`; None: leave them."""
    if max_norm is None or (norm.device.type == "cpu" and norm.item() + 1e-6 <= max_norm):  # on the CPU asking is cheaper than multiplying by 1
        return
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> float:
    """Use `value` from the next update on, in every group; returns it."""
    for group in optimizer.param_groups:
        group["lr"] = value
    return value
