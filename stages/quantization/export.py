"""A causal or masked model as an ONNX graph for batches and sequences of any length; causal ones take and return their key-value cache."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import onnx_ir as ir
import torch
from torch import Tensor, nn

from stages.models.architecture import objective_of

LOGITS = "logits"
BATCH, SEQUENCE, PAST = 2, 5, 3  # example sizes: neither 0 nor 1, which torch.export would take for constants
CHATTER = ("torch.onnx._internal.exporter._registration",)  # lists every package that is not installed and could have been exported too
NOISE = (
    r".*isinstance\(treespec, LeafSpec\)",  # torch's own use of a name that it deprecated
    r"# The axis name: \w+ will not be used, since it shares the same shape constraints",  # that equal names mean equal sizes is what we ask for
)

Past = list[tuple[Tensor, Tensor]]


def export(model: nn.Module) -> ir.Model:
    """The graph of `model`, a causal or masked model in evaluation mode on the CPU.

    Inputs, int64: `input_ids` (batch, sequence); masked models: `attention_mask` (batch, sequence), 1 for a token, 0 for padding.
    Causal models take whole sequences without padding and `past_key_values.<layer>.key|value` (batch, heads, past, head size),
    past 0 at the start, and return `present.<layer>.key|value` beside `logits` (batch, sequence, vocabulary).
    Raises torch.onnx.OnnxExporterError for a model that torch cannot export.
    """
    causal = objective_of(cast(Any, model).config) == "causal"
    wrapped, arguments, shapes, names, outputs = _causal(model) if causal else _masked(model)
    with torch.inference_mode(False), torch.no_grad(), _quiet():
        program = torch.onnx.export(
            wrapped.eval(), arguments, dynamo=True, dynamic_shapes=shapes, input_names=names, output_names=outputs, verbose=False, external_data=False
        )
    assert program is not None, "torch.onnx.export returns a program when it is given no file"
    return _without_notes(program.model)


class _Causal(nn.Module):
    """The model with its cache as plain tensors."""

    def __init__(self, model: nn.Module, cache: Callable[[Past], Any]) -> None:
        super().__init__()
        self.model, self.cache = model, cache

    def forward(self, input_ids: Tensor, past: Past) -> tuple[Tensor, Past]:
        output = self.model(input_ids=input_ids, cache=self.cache(past), use_cache=True)
        return output.logits, _pairs(output.cache)


class _Masked(nn.Module):
    """The model with its logits as the only output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return cast(Tensor, self.model(input_ids=input_ids, attention_mask=attention_mask).logits)


def _pairs(cache: Any) -> Past:
    """The keys and values of every layer of a cache of transformers, each (batch, heads, past, head size)."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def _causal(model: nn.Module) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], list[str], list[str]]:
    """The wrapped model, example arguments, which of their dimensions vary, and the names of inputs and outputs."""
    with torch.no_grad():
        cache = model(input_ids=_tokens(model, PAST), use_cache=True).cache
    past = _pairs(cache)
    shape = {0: "batch", 2: "past"}
    names = [f"{layer}.{part}" for layer in range(len(past)) for part in ("key", "value")]
    inputs = ["input_ids", *(f"past_key_values.{name}" for name in names)]
    shapes = {"input_ids": {0: "batch", 1: "sequence"}, "past": [(shape, shape)] * len(past)}
    return _Causal(model, type(cache)), (_tokens(model, SEQUENCE), past), shapes, inputs, [LOGITS, *(f"present.{name}" for name in names)]


def _masked(model: nn.Module) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], list[str], list[str]]:
    """As `_causal`."""
    shape = {0: "batch", 1: "sequence"}
    names = ["input_ids", "attention_mask"]
    mask = torch.ones(BATCH, SEQUENCE, dtype=torch.int64)
    mask[0, -1] = 0  # padding, so that the mask is not taken for a constant
    return _Masked(model), (_tokens(model, SEQUENCE), mask), dict.fromkeys(names, shape), names, [LOGITS]


def _tokens(model: nn.Module, length: int) -> Tensor:
    """Example token ids (batch, length)."""
    return torch.arange(BATCH * length).reshape(BATCH, length) % int(cast(Any, model).config.vocab_size)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the exporter says on every model; everything else it warns of is shown."""
    loggers = [logging.getLogger(name) for name in CHATTER]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for message in NOISE:
            warnings.filterwarnings("ignore", message=message)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _without_notes(model: ir.Model) -> ir.Model:
    """Drop the source lines and module paths that the exporter attaches to every node: half of a small model's file."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    return model
