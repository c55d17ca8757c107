"""Int8 for a weight matrix: symmetric, one scale for each row (output channel); both runtimes store the same numbers."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """A matrix (rows, columns) as int8 values from -127 to 127 and float32 scales (rows,): value x scale is the weight."""

    values: Bytes
    scales: Floats

    def dequantized(self) -> Floats:
        """The float32 matrix (rows, columns) that the int8 one stands for."""
        return self.values * self.scales[:, None]


def quantize_rows(weight: Floats) -> Int8Rows:
    """Round `weight` (rows, columns) to the nearest of 255 levels up to each row's largest magnitude.

    A row with a weight that is not finite gets the scale NaN, so that a broken model stays visibly broken.
    """
    largest = np.abs(weight).max(axis=1)  # (rows,); NaN where the row holds one
    finite = np.isfinite(largest)
    scales = np.where(finite & (largest > 0), largest / np.float32(127), np.float32(1)).astype(np.float32)
    values = np.rint(np.where(finite[:, None], weight, 0) / scales[:, None]).astype(np.int8)
    return Int8Rows(values, np.where(finite, scales, np.float32("nan")).astype(np.float32))
