"""A model's own forward pass, taken apart at its head: what enters it, and the logits for a part of that."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.models.attention import whole_blocks


def unwrap(model: nn.Module) -> PreTrainedModel:
    """The network inside a compiled or data-parallel wrapper."""
    while not isinstance(model, PreTrainedModel):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        assert isinstance(inner, nn.Module), f"no transformers model inside {type(model).__name__}"
        model = inner
    return model


def output_head(model: nn.Module) -> Any:
    """The last linear layer, hidden states to logits (a quantized one is no nn.Linear)."""
    head = unwrap(model).get_output_embeddings()
    if head is None:
        raise ValueError(f"model.architecture: {unwrap(model).config.model_type!r} has no output embedding to compute a token loss with; allowed: one that has")
    return head


def has_plain_head(model: nn.Module) -> bool:
    """Whether the logits are what the head returns; some architectures scale or cap them afterwards. Found out once a model."""
    network = unwrap(model)
    if "_has_plain_head" not in network.__dict__:
        network.__dict__["_has_plain_head"] = _returns_head_output(network)
    return bool(network.__dict__["_has_plain_head"])


def before_head(model: nn.Module, inputs: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The model's own forward pass up to its head: (batch, sequence, hidden)."""
    network, head = unwrap(model), output_head(model)
    with whole_blocks(network) if attention_mask is None else nullcontext():
        if has_plain_head(model):
            with _as(head, _passing):
                hidden: Tensor = model(input_ids=inputs, attention_mask=attention_mask).logits
            return hidden
        with _as(head, _stopping), suppress(_Reached):
            model(input_ids=inputs, attention_mask=attention_mask)
        return cast(Tensor, head.__dict__.pop("_seen"))


def logits_function(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The function from what enters the head, (positions, hidden), to the model's own logits (positions, vocabulary)."""
    head = output_head(model)
    return head if has_plain_head(model) else partial(_logits_through_tail, unwrap(model), head)


def _logits_through_tail(network: PreTrainedModel, head: Any, rows: Tensor) -> Tensor:
    """What the model's forward pass makes of the head's output for `rows`: scaled or capped logits."""
    logits = head(rows)[None]  # (1, positions, vocabulary)
    head.__dict__["_given"] = logits
    try:
        with _as(head, _giving):
            return _tail(network, len(rows)).logits[0]  # type: ignore[no-any-return]
    finally:
        del head.__dict__["_given"]


def _returns_head_output(network: PreTrainedModel) -> bool:
    """Runs what follows the body on one position: the very tensor that the head returned comes back, or something made of it."""
    head = output_head(network)
    with torch.no_grad(), _as(head, _remembering):
        output = _tail(network, 1)
    if "_seen" not in head.__dict__:
        raise ValueError(_inseparable(network))
    return output.logits is head.__dict__.pop("_seen")


def _tail(network: PreTrainedModel, positions: int) -> Any:
    """The forward pass with a body that does nothing: (1, positions, hidden) zeros go on to whatever follows it."""
    body, parameter = network.base_model, next(network.parameters())
    if body is network:
        raise ValueError(_inseparable(network))
    zeros = torch.zeros(1, positions, network.config.hidden_size, dtype=parameter.dtype, device=parameter.device)
    body.__dict__["_given"] = zeros
    try:
        with _as(body, _idle):
            return network(input_ids=torch.zeros(1, positions, dtype=torch.long, device=parameter.device))
    finally:
        del body.__dict__["_given"]


def _inseparable(network: PreTrainedModel) -> str:
    name = network.config.model_type
    return f"model.architecture: {name!r} computes its logits in a way that its head cannot be told from its body; choose one such as gpt2, llama or bert"


class _BodyOutput(tuple[Tensor]):
    """A body's output with hidden states alone; whatever else is asked of it is None."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


@contextmanager
def _as(module: nn.Module, behaviour: Callable[[type], type]) -> Iterator[None]:
    """`module` with another forward, for a while. Its class changes, not the object: parameters, ties, hooks and compiled code stay."""
    kind, compiled = type(module), module.__dict__.pop("_compiled_call_impl", None)
    module.__class__ = behaviour(kind)
    try:
        yield
    finally:
        module.__class__ = kind
        if compiled is not None:
            module.__dict__["_compiled_call_impl"] = compiled


@cache
def _passing(kind: type) -> type:
    """The head returns what enters it."""
    return type(f"Passing{kind.__name__}", (kind,), {"forward": lambda self, hidden: hidden})


class _Reached(Exception):  # noqa: N818
    """The forward pass has come to the head."""


@cache
def _stopping(kind: type) -> type:
    """The head remembers what enters it, and nothing is computed beyond."""

    def forward(self: nn.Module, hidden: Tensor) -> Tensor:
        self.__dict__["_seen"] = hidden
        raise _Reached

    return type(f"Stopping{kind.__name__}", (kind,), {"forward": forward})


@cache
def _remembering(kind: Any) -> type:
    """The head does its work, and remembers what it returned."""

    def forward(self: nn.Module, hidden: Tensor) -> Tensor:
        self.__dict__["_seen"] = kind.forward(self, hidden)
        return cast(Tensor, self.__dict__["_seen"])

    return type(f"Remembering{kind.__name__}", (kind,), {"forward": forward})


@cache
def _giving(kind: type) -> type:
    """The head returns logits that were computed before."""
    return type(f"Giving{kind.__name__}", (kind,), {"forward": lambda self, hidden: self.__dict__["_given"]})


@cache
def _idle(kind: type) -> type:
    """The body returns what it was given, without a forward pass."""
    return type(f"Idle{kind.__name__}", (kind,), {"forward": lambda self, *args, **kwargs: _BodyOutput((self.__dict__["_given"],))})
