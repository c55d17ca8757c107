"""Whole blocks: no mask is built, nothing of the batch is read, and the numbers stay the same."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from stages.models.attention import WHOLE_BLOCKS, whole_blocks
from tests.models.made import ALL, batch, network


class Reads(TorchFunctionMode):
    """Counts what would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += getattr(func, "__name__", "") in ("item", "__bool__", "tolist", "__contains__", "__index__", "__int__")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("architecture", "objective"), ALL)
def test_the_numbers_are_those_of_a_mask_of_ones(architecture: str, objective: str) -> None:
    model, (inputs, _) = network(architecture, objective), batch()
    expected = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits
    with whole_blocks(model):
        found = model(input_ids=inputs).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("architecture", "objective"), [("gpt2", "causal"), ("llama", "causal"), ("bert", "masked")])
def test_no_value_of_the_batch_is_read(architecture: str, objective: str) -> None:
    model, (inputs, _) = network(architecture, objective), batch()
    with whole_blocks(model), Reads() as reads:
        model(input_ids=inputs)
    assert reads.count == 0


def test_plain_transformers_reads_values_so_the_count_above_means_something() -> None:
    model, (inputs, _) = network(), batch()
    with Reads() as reads:
        model(input_ids=inputs)
    assert reads.count > 0


def test_afterwards_a_mask_is_heard_again() -> None:
    model, (inputs, _) = network("bert", "masked"), batch()
    mask = torch.ones_like(inputs)
    mask[:, 10:] = 0
    with whole_blocks(model):
        assert model.config._attn_implementation == WHOLE_BLOCKS
    assert model.config._attn_implementation == "sdpa"
    assert not torch.allclose(model(input_ids=inputs, attention_mask=mask).logits[:, :10], model(input_ids=inputs).logits[:, :10])


def test_local_attention_keeps_its_mask() -> None:
    """A sliding window narrower than the sequence is no whole block."""
    model, (inputs, _) = network("mistral"), batch()
    model.config.sliding_window = 4
    narrow = model(input_ids=inputs).logits
    with whole_blocks(model):
        torch.testing.assert_close(model(input_ids=inputs).logits, narrow)
    model.config.sliding_window = None
    assert not torch.allclose(model(input_ids=inputs).logits, narrow)
