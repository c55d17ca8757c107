"""Which transformers classes stand behind model.architecture and model.objective."""

import difflib
from typing import Literal

from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from stages.params import Model

Objective = Literal["causal", "masked"]

_HEADS: dict[Objective, dict[str, str]] = {"causal": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "masked": MODEL_FOR_MASKED_LM_MAPPING_NAMES}
_CLASSES = {"causal": MODEL_FOR_CAUSAL_LM_MAPPING, "masked": MODEL_FOR_MASKED_LM_MAPPING}


def config_class(objective: Objective, architecture: str) -> type[PretrainedConfig]:
    """The configuration class of a transformers model type; ValueError when it is unknown or has no head for the objective."""
    if architecture not in CONFIG_MAPPING_NAMES:
        near = difflib.get_close_matches(architecture, _HEADS[objective], n=3, cutoff=0.5) or ["gpt2", "llama", "bert"]
        raise ValueError(f"model.architecture: {architecture!r} is no model type that transformers knows; did you mean {' or '.join(near)}?")
    if architecture not in _HEADS[objective]:
        raise ValueError(_no_head(objective, architecture))
    kind: type[PretrainedConfig] = CONFIG_MAPPING[architecture]
    return kind


def model_class(objective: Objective, config: PretrainedConfig) -> type[PreTrainedModel]:
    """The model class with the objective's head for `config`; ValueError when there is none."""
    if type(config) not in _CLASSES[objective]:
        raise ValueError(_no_head(objective, config.model_type))
    found = _CLASSES[objective][type(config)]
    kind: type[PreTrainedModel] = found[0] if isinstance(found, tuple) else found
    if config.is_encoder_decoder and objective == "masked":
        raise ValueError(
            f"model.architecture: {config.model_type!r} is an encoder with a decoder; allowed for model.objective 'masked': an encoder, such as bert"
        )
    return kind


def check_attention(kind: type[PreTrainedModel], model: Model) -> None:
    """ValueError when the architecture has no attention of the kind asked for."""
    if model.attention == "sdpa" and not kind._supports_sdpa:
        raise ValueError(f"model.attention: 'sdpa', but {kind.__name__} has no fused attention in transformers; set model.attention: eager")


def objective_of(config: PretrainedConfig) -> Objective:
    """What a saved model was trained for, by the class that its configuration names; ValueError when that predicts no tokens."""
    for objective, heads in _HEADS.items():
        if heads.get(config.model_type) in (config.architectures or []):
            return objective
    raise ValueError(f"the model's config.json names the classes {config.architectures}, none of which predicts tokens; save a causal or masked language model")


def is_headless(config: PretrainedConfig) -> bool:
    """Whether a saved model is a body alone, to which either head can be added."""
    return not config.architectures or all(name.endswith("Model") and not name.endswith("LMHeadModel") for name in config.architectures)


def _no_head(objective: Objective, architecture: str) -> str:
    other: Objective = "masked" if objective == "causal" else "causal"
    advice = f"set model.objective: {other}" if architecture in _HEADS[other] else "choose another model.architecture"
    return f"model.architecture: {architecture!r} has no head for model.objective {objective!r} in transformers; {advice}, or an architecture such as " + (
        "gpt2 or llama" if objective == "causal" else "bert or roberta"
    )
