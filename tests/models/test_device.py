"""The device asked for, or what to set instead; and what importing models costs."""

import subprocess
import sys

import pytest
import torch

from stages.models.device import resolve


def test_auto_finds_one_that_is_there() -> None:
    assert torch.zeros(1, device=resolve("auto")).device.type == resolve("auto").type
    assert resolve("cpu") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"device is cuda.*auto or one of: .*cpu"):
        resolve("cuda")


@pytest.mark.slow
def test_importing_models_leaves_out_what_no_language_model_needs() -> None:
    code = "import sys, stages.models.build, stages.models.storage; print(sorted({'scipy', 'sklearn', 'pandas', 'mlflow', 'torchvision'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
