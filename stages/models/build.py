"""The network that params.yaml asks for: from scratch by its sizes, or from pretrained weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor
from transformers import PreTrainedModel

from stages.models.architecture import check_attention, config_class, model_class
from stages.models.forward import has_plain_head
from stages.models.pretrained import load_pretrained
from stages.models.sizes import check_sizes, scratch_config, set_behaviour
from stages.params import Model

LEAK = 1e-5  # share of the largest logit that rounding may change


def build(model: Model, *, vocab_size: int, end_of_text: int, pad_token: int, seed: int) -> PreTrainedModel:
    """A float32 model on the CPU, in training mode, with the head of `model.objective`; its `config` saves with it.

    Initial weights depend on `seed` alone; the global generator is left as it was. ValueError when the architecture is unknown,
    lacks the head, does not honour a size, or when pretrained weights do not fit the tokenizer, the objective or the length.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with _plain_words(model):
            network = _from_scratch(model, vocab_size, end_of_text, pad_token) if model.init == "scratch" else load_pretrained(model, vocab_size)
            _try_out(network.eval(), model)
            has_plain_head(network)  # an architecture whose head cannot be told from its body is refused here, not in the first step
    return network.train()


@contextmanager
def _plain_words(model: Model) -> Iterator[None]:
    """What an architecture stumbles over when its sizes are not the usual ones, as the user's choice to change."""
    try:
        yield
    except (TypeError, KeyError, AttributeError, IndexError, AssertionError, RuntimeError) as error:
        what = f"model.architecture: {model.architecture!r} cannot be built or run with these sizes"
        raise ValueError(f"{what} ({type(error).__name__}: {error}); choose one such as gpt2, llama or bert") from error


def _from_scratch(model: Model, vocab_size: int, end_of_text: int, pad_token: int) -> PreTrainedModel:
    config = scratch_config(config_class(model.objective, model.architecture), model, vocab_size=vocab_size, end_of_text=end_of_text, pad_token=pad_token)
    set_behaviour(config, model)
    kind = model_class(model.objective, config)
    check_attention(kind, model)
    try:
        network = kind(config)
    except ValueError as error:
        raise ValueError(f"model.architecture: {model.architecture!r} refuses the sizes of params.yaml: {error}") from None
    check_sizes(network, model, vocab_size)
    return network


def _try_out(network: PreTrainedModel, model: Model) -> None:
    """Run it once. Refuse a causal network whose earlier logits change with a later token: it would be trained on what it sees."""
    length = min(8, model.sequence_length)
    tokens = torch.arange(length, device=network.device).remainder(network.config.vocab_size)[None]  # (1, sequence)
    with torch.no_grad():
        logits = network(input_ids=tokens).logits
        changed = network(input_ids=tokens.index_fill(1, tokens.new_tensor([length - 1]), 0)).logits
    if model.objective == "masked" or isinstance(logits, FakeTensor):
        return
    leak, size = (logits - changed)[:, : length - 1].abs().max(), logits.abs().max()
    if leak > LEAK * size:
        raise ValueError(
            f"model.architecture: {network.config.model_type!r} sees later tokens with a causal head; use model.objective: masked, or gpt2 or llama"
        )
