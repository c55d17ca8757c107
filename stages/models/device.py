"""Where a model runs."""

from typing import Literal

import torch


def resolve(device: Literal["auto", "cpu", "cuda", "mps"]) -> torch.device:
    """The device asked for; `auto` takes a GPU when there is one. ValueError for one that this machine or this build of torch does not have."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    if not there[device]:
        found = ", ".join(name for name, is_there in there.items() if is_there)
        raise ValueError(f"device is {device}, which torch {torch.__version__} does not find here; use auto or one of: {found}")
    return torch.device(device)
