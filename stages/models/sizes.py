"""The sizes of params.yaml under the names that a transformers configuration has for them."""

from dataclasses import fields
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from stages.params import Model

_INNER = ("intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "ffn_hidden_size", "d_ff", "dim_feedforward")
_ACTIVATION = ("activation_function", "hidden_act", "hidden_activation", "activation")
_TANH_GELU = ("gelu_new", "gelu_fast", "gelu_python_tanh")  # the tanh approximation, written in several operations
_INNER_MULTIPLE = 32


def scratch_config(kind: type[PretrainedConfig], model: Model, *, vocab_size: int, end_of_text: int, pad_token: int) -> PretrainedConfig:
    """A configuration of class `kind` with the sizes of `model`; ValueError naming a size that it has no place for."""
    known = {field.name for field in fields(kind)}
    sizes = {"num_hidden_layers": model.num_layers, "hidden_size": model.hidden_size, "num_attention_heads": model.num_heads, "vocab_size": vocab_size}
    names = {name: kind.attribute_map.get(name, name) for name in sizes}
    absent = [name for name in sizes if names[name] not in known]
    if absent:
        raise ValueError(
            f"model.architecture: {model.architecture!r} has no setting for {', '.join(absent)}, so the sizes of params.yaml cannot be given to it"
        )
    values = {names[name]: size for name, size in sizes.items()}
    values |= {name: value for name, value in _implied(kind, model, end_of_text, pad_token).items() if name in known}
    try:
        return kind(**values)
    except (StrictDataclassError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"model.architecture: {model.architecture!r} refuses the sizes of params.yaml: {reason}") from None


def set_behaviour(config: PretrainedConfig, model: Model) -> None:
    """Everything but the sizes: dropouts, the activation, attention, no cache (which training has no use for). ValueError for a dropout it has no place for."""
    dropouts = _dropouts(config, model.dropout)
    if model.dropout and not any(dropouts.values()):
        raise ValueError(f"model.dropout: {model.dropout}, but {config.model_type} has no dropout; set it to 0.0")
    for name, share in dropouts.items():
        setattr(config, name, share)
    for name in _ACTIVATION:
        if model.fused_activation and getattr(config, name, None) in _TANH_GELU:
            setattr(config, name, "gelu_pytorch_tanh")
    if hasattr(config, "is_decoder"):
        config.is_decoder = model.objective == "causal"  # without it an encoder with a causal head would see what it is to predict
    config.use_cache = False
    config._attn_implementation = model.attention


def check_sizes(network: PreTrainedModel, model: Model, vocab_size: int) -> None:
    """ValueError when the built network has not the size asked for, whatever its configuration says."""
    shares_layers = hasattr(network.config, "num_hidden_groups")
    depths = set() if shares_layers else {len(part) for part in network.modules() if isinstance(part, nn.ModuleList)}
    found = {
        "num_layers": (model.num_layers, model.num_layers if model.num_layers in depths or not depths else max(depths)),
        "hidden_size": (model.hidden_size, network.config.hidden_size),
        "num_heads": (model.num_heads, network.config.num_attention_heads),
    }
    wrong = [f"model.{name}: {asked} became {got}" for name, (asked, got) in found.items() if asked != got]
    if wrong:
        raise ValueError(f"model.architecture: {model.architecture!r} does not honour {'; '.join(wrong)}; choose another architecture")
    entries = network.get_input_embeddings().weight.shape[0]
    assert isinstance(entries, int) and entries >= vocab_size, f"{entries} embeddings for a vocabulary of {vocab_size}"


def positions(config: PretrainedConfig) -> int | None:
    """The longest sequence that the model's positions allow; None: no limit."""
    most = getattr(config, "max_position_embeddings", None)
    return None if not isinstance(most, int) or most <= 0 else most - _first_position(type(config), config.pad_token_id)


def _implied(kind: type[PretrainedConfig], model: Model, end_of_text: int, pad_token: int) -> dict[str, Any]:
    """Values that follow from the sizes, under every name in use; the caller keeps those that the configuration has."""
    head_dim = model.hidden_size // model.num_heads
    inner = _inner_size(kind, model.hidden_size)
    return {
        **dict.fromkeys(_INNER, inner),
        "num_key_value_heads": model.num_heads,
        "head_dim": head_dim,
        "rotary_dim": head_dim,
        "embedding_size": model.hidden_size,
        "attention_types": [[["local" if layer % 2 else "global"], 1] for layer in range(model.num_layers)],
        kind.attribute_map.get("max_position_embeddings", "max_position_embeddings"): model.sequence_length + _first_position(kind, pad_token),
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "pad_token_id": pad_token,
        "cls_token_id": end_of_text,
        "sep_token_id": end_of_text,
    }


def _inner_size(kind: type[PretrainedConfig], hidden_size: int) -> int:
    """4 x hidden, or 8/3 x hidden where a gate makes three matrices of two (Shazeer 2020, GLU Variants Improve Transformer)."""
    gated = any("gate" in name for name in kind.base_model_tp_plan or {})
    if not gated:
        return 4 * hidden_size
    return -(-8 * hidden_size // (3 * _INNER_MULTIPLE)) * _INNER_MULTIPLE


def _first_position(kind: type[PretrainedConfig], pad_token: int | None) -> int:
    """Entries of the position embedding before that of the first token: RoBERTa and its kin count from behind the padding id."""
    counts_from_padding = any(name in kind.__name__.lower() for name in ("roberta", "camembert", "data2vectext", "longformer", "xmod", "mpnet", "esm", "ibert"))
    return (pad_token or 0) + 1 if counts_from_padding else 0


def _dropouts(config: PretrainedConfig, share: float) -> dict[str, float]:
    """Every dropout of the configuration; dropping whole layers stays off."""
    found = [field.name for field in fields(type(config)) if "drop" in field.name and type(getattr(config, field.name)) in (int, float)]
    return {name: 0.0 if "layer" in name or "path" in name else share for name in found}
