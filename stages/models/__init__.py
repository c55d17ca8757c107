"""Networks: built by size or from pretrained weights, their heads without full logits, and how they are stored."""

import importlib

import transformers.utils


def _import_losses_without_scipy() -> None:
    """transformers imports scipy.optimize (half a second) with every model, for object detection losses that no language model has."""
    is_scipy_available = transformers.utils.is_scipy_available
    transformers.utils.is_scipy_available = lambda: False
    try:
        importlib.import_module("transformers.loss.loss_utils")
    finally:
        transformers.utils.is_scipy_available = is_scipy_available


_import_losses_without_scipy()
