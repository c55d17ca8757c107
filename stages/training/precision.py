"""Which arithmetic a training runs in: fp32, or bf16 or fp16 where autocast deems it safe, weights always in fp32."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from stages.params import LossScale

Name = Literal["fp32", "bf16", "fp16"]

SMALL_MODEL_PARAMETERS = 10_000_000
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """A resolved precision on one kind of device; `autocast()` is entered anew for each forward."""

    name: Name
    device_type: str

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward; nothing at all in fp32."""
        return nullcontext() if self.name == "fp32" else torch.autocast(self.device_type, dtype=_DTYPES[self.name])


def resolve(precision: Literal["auto", "fp32", "bf16", "fp16"], device: torch.device, parameters: int) -> Precision:
    """`precision` as asked for, or for `auto` what `device` is good at, by a rule and no measurement, so that equal machines agree.

    A model below SMALL_MODEL_PARAMETERS stays in fp32: its matmuls are too small to repay the casts. Above, CUDA takes bf16 where the chip
    has it (Ampere and later), else fp16; a CPU takes bf16 only with matrix units for it (AMX): without them it is slower than fp32. Raises ValueError
    for a precision that `device` cannot run.
    """
    if precision == "auto":
        return Precision("fp32" if parameters < SMALL_MODEL_PARAMETERS else _fast(device), device.type)
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ValueError(f"train.precision is bf16, which {torch.cuda.get_device_name(device)} does not have; use fp16, fp32 or auto")
    return Precision(precision, device.type)


def _fast(device: torch.device) -> Name:
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type == "cpu" and torch.cpu.get_capabilities().get("amx_bf16", False):
        return "bf16"
    return "fp32"


def gradient_scaler(precision: Precision, settings: LossScale) -> torch.amp.GradScaler:
    """The scaler of a training: at work for fp16, else one that passes everything through."""
    return torch.amp.GradScaler(
        precision.device_type,
        init_scale=settings.initial,
        growth_factor=settings.growth_factor,
        backoff_factor=settings.backoff_factor,
        growth_interval=settings.growth_interval,
        enabled=precision.name == "fp16",
    )


def allow_tf32(allowed: bool, device: torch.device) -> None:
    """Let fp32 matmuls on CUDA use TensorFloat-32 (10 bits of mantissa), or not; nothing changes for another `device`."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if allowed else "highest")
