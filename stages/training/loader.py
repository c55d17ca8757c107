"""How batches are read ahead: speed only, never content."""

from dataclasses import dataclass

import torch

from stages.params import Train


@dataclass(frozen=True)
class Loader:
    """Settings of the DataLoader, without any `auto` left."""

    workers: int
    prefetch: int
    pin_memory: bool


def resolve(train: Train, device: torch.device) -> Loader:
    """The settings asked for; `auto` means what pays on `device`.

    A batch is a few reads from the page cache, far below a millisecond: on the CPU the training itself reads them, since a worker would take
    a core away from it. For CUDA two workers stay four batches ahead in page-locked memory, so that reading and copying hide behind the device.
    Page-locked memory is of use to CUDA only, and elsewhere never taken.
    """
    cuda = device.type == "cuda"
    workers = (2 if cuda else 0) if train.workers == "auto" else train.workers
    return Loader(
        workers=workers,
        prefetch=4 if train.prefetch == "auto" else train.prefetch,
        pin_memory=cuda and train.pin_memory is not False,
    )
