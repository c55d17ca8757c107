"""Values on their way from the device."""

import pytest
import torch

from stages.training.readback import Readback


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here"))])
def test_values_are_those_at_the_time_they_were_sent(device):
    values = torch.tensor([1.5, -2.0], device=device)
    readback = Readback(values.clone())
    values += 1
    assert readback.read() == readback.read() == [1.5, -2.0]
