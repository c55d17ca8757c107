"""Fused attention for whole blocks: no mask is built, and none of the batch's values is read to find that out."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

WHOLE_BLOCKS = "whole_blocks"

# Registered as an attention, on purpose not as a mask: transformers then builds no mask, before it has read position ids and padding,
# a device synchronization each forward pass and impossible under fake tensors. The attention itself is the usual fused one.
AttentionInterface.register(WHOLE_BLOCKS, sdpa_attention_forward)


@contextmanager
def whole_blocks(model: PreTrainedModel) -> Iterator[None]:
    """Within it `model` takes every row of a batch as one whole sequence without padding; causal models stay causal.

    Only for forward passes without an attention mask. Models with eager or local attention keep the masks they need.
    """
    if not _needs_no_mask(model):
        yield
        return
    body = model.base_model
    body.__dict__["warn_if_padding_and_no_attention_mask"] = _no_warning
    model.config._attn_implementation = WHOLE_BLOCKS
    try:
        yield
    finally:
        model.config._attn_implementation = "sdpa"
        del body.__dict__["warn_if_padding_and_no_attention_mask"]


def _no_warning(*_: object) -> None:
    """In place of a check that reads the batch for padding, which whole blocks do not have."""


def _needs_no_mask(model: PreTrainedModel) -> bool:
    return model.config._attn_implementation == "sdpa" and bool(model._supports_attention_backend) and not _is_local(model.config)


def _is_local(config: PretrainedConfig) -> bool:
    """Whether some layer sees only a part of the sequence, so that causality alone does not say what it may see."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return getattr(config, "sliding_window", None) is not None or kinds != {"full_attention"}
