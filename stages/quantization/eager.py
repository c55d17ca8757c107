"""A model in eager PyTorch with int8 weights: quantized to plain tensors, and put together from them again."""

import warnings
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.ao.nn.quantized import dynamic

from stages.models.linearize import linearize
from stages.quantization.counts import Counts
from stages.quantization.rows import quantize_rows

DEPRECATION = r".*quantized tensor creation functions"  # torch announces an end of torch.ao.quantization; its version is pinned here


class TokenTable(nn.Module):
    """An embedding with int8 rows: looks up, then scales."""

    values: Tensor
    scales: Tensor

    def __init__(self, values: Tensor, scales: Tensor) -> None:
        """`values` (vocabulary, hidden) int8 and `scales` (vocabulary,) float32."""
        super().__init__()
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.values[tokens] * self.scales[tokens].unsqueeze(-1)  # (batch, sequence, hidden) float32


def quantize(model: nn.Module) -> tuple[dict[str, Tensor], Counts]:
    """The weights of `model`, its Conv1D layers made nn.Linear in place: those of linear layers and of the token embedding as
    `<module>.int8` and `<module>.int8_scales`, all others as they are. A tied weight stands there once, under the name of its first user.
    """
    linearize(model)
    owners = _owners(model)
    tensors: dict[str, Tensor] = {}
    for name, module in owners.items():
        if name == _first_owner(owners, module):
            rows = quantize_rows(module.weight.detach().float().numpy())
            tensors |= {f"{name}.int8": torch.from_numpy(rows.values), f"{name}.int8_scales": torch.from_numpy(rows.scales)}
    quantized = sum(tensor.numel() for name, tensor in tensors.items() if name.endswith(".int8"))
    tensors |= _others(model, owners)
    layers = sum(isinstance(module, nn.Linear) for module in owners.values())
    return tensors, Counts(layers, len(owners) - layers, quantized, sum(weight.numel() for weight in model.parameters()))


def assemble(model: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """Put `tensors`, made by `quantize`, into `model`, a model of the same configuration with any weights, and return it, ready to run.

    Linear layers compute as torch.ao.quantization.quantize_dynamic has them, one scale an output channel.
    Raises ValueError when names or shapes do not fit.
    """
    _choose_engine()
    linearize(model)
    owners = _owners(model)
    _restore(_others(model, owners), {name: tensor for name, tensor in tensors.items() if not name.endswith((".int8", ".int8_scales"))})
    for name, module in owners.items():
        source = _first_owner(owners, module)
        if f"{source}.int8" not in tensors or tensors[f"{source}.int8"].shape != module.weight.shape:
            raise ValueError(
                f"the quantized weights hold no {source}.int8 of shape {tuple(module.weight.shape)}; the model folder and its config.json do not fit"
            )
        values, scales = tensors[f"{source}.int8"], tensors[f"{source}.int8_scales"]
        model.set_submodule(name, _linear(module, values, scales) if isinstance(module, nn.Linear) else TokenTable(values, scales))
    return model.eval()


def _choose_engine() -> None:
    """Where torch has int8 kernels but leaves the choice open (Macs with Apple silicon), take them: its int8 layers raise otherwise."""
    engines = torch.backends.quantized
    if engines.engine == "none" and "qnnpack" in engines.supported_engines:
        engines.engine = "qnnpack"


def _owners(model: nn.Module) -> dict[str, nn.Linear | nn.Embedding]:
    """The linear layers and the token embedding, by name."""
    tokens = cast(Any, model).get_input_embeddings()
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) or (module is tokens and isinstance(module, nn.Embedding))}


def _first_owner(owners: dict[str, nn.Linear | nn.Embedding], module: nn.Linear | nn.Embedding) -> str:
    """The first name under which the weight of `module` is used: its own, unless it is tied."""
    return next(name for name, other in owners.items() if other.weight is module.weight)


def _others(model: nn.Module, owners: dict[str, nn.Linear | nn.Embedding]) -> dict[str, Tensor]:
    """What stays float32: every parameter once, and the buffers that are stored."""
    quantized = {id(module.weight) for module in owners.values()}
    stored = set(model.state_dict())
    found = [*model.named_parameters(), *((name, buffer) for name, buffer in model.named_buffers() if name in stored)]
    return {name: tensor.detach() for name, tensor in found if id(tensor) not in quantized}


def _restore(targets: dict[str, Tensor], sources: dict[str, Tensor]) -> None:
    """Copy `sources` into the tensors of the same names."""
    if wrong := targets.keys() ^ sources.keys():
        raise ValueError(f"the quantized weights and config.json disagree about {', '.join(sorted(wrong)[:5])}; quantize the model again")
    for name, target in targets.items():
        target.copy_(sources[name])


def _linear(layer: nn.Linear, values: Tensor, scales: Tensor) -> nn.Module:
    """The dynamic int8 linear layer with the weight `values` (out, in) x `scales` (out,) and the bias of `layer`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=DEPRECATION)
        linear = dynamic.Linear(  # type: ignore[no-untyped-call]
            layer.in_features, layer.out_features, bias_=layer.bias is not None, dtype=torch.qint8
        )
        weight = torch._make_per_channel_quantized_tensor(values, scales.double(), torch.zeros(len(scales), dtype=torch.int64), 0)
    linear.set_weight_bias(weight, None if layer.bias is None else layer.bias.detach())
    return linear
