"""Loader settings: `auto` by device, and what the user says."""

import pytest
import torch

from stages.training.loader import Loader, resolve
from tests.training.made import make_params

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        (CPU, {}, Loader(0, 4, False)),
        (CUDA, {}, Loader(2, 4, True)),
        (CPU, {"workers": 3, "prefetch": 7}, Loader(3, 7, False)),
        (CUDA, {"workers": 0, "pin_memory": False}, Loader(0, 4, False)),
        (CPU, {"pin_memory": True}, Loader(0, 4, False)),  # page-locked memory is of use to CUDA only
    ],
)
def test_settings(device, changes, expected):
    assert resolve(make_params({"train": changes}).train, device) == expected
