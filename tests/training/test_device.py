"""Devices: auto, and one that is not here."""

import pytest
import torch

from stages.training.device import resolve


def test_the_cpu_is_always_there():
    assert resolve("cpu") == torch.device("cpu")


def test_auto_takes_what_is_there(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for cuda, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        assert resolve("auto").type == expected


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("cuda", "mps"):
        with pytest.raises(ValueError, match=f"device is {name}, which torch .* does not find here; use auto or one of: cpu"):
            resolve(name)
