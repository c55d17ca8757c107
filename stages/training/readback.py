"""Numbers on their way from the device: sent without waiting, waited for by whoever reads them, and for them alone."""

import torch
from torch import Tensor


class Readback:
    """A few values of a device tensor. On CUDA they are copied to page-locked memory at once, behind an event; so reading them waits for what
    was queued before the copy, and not for the steps queued since, as `tolist` of a device tensor would.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._event: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def read(self) -> list[float]:
        """The values; waits until they are here."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._values.tolist()
        return values
