"""Weights that somebody trained before: a folder under inputs/weights, or a model of the hub; safetensors only, no foreign code."""

import socket
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from stages.models.architecture import check_attention, is_headless, model_class, objective_of
from stages.models.sizes import positions, set_behaviour
from stages.params import Model

PADDED_ENTRIES = 1024  # embeddings beyond the tokenizer's entries that count as padding of the matrix, as many published models have
REACH_SECONDS = 2.0


def load_pretrained(model: Model, vocab_size: int) -> PreTrainedModel:
    """The model at `model.init`, float32, with its own sizes; ValueError naming what is missing or does not fit params.yaml."""
    logging.disable_progress_bar()
    source, cached = _locate(model.init)
    config = _config(source, model.init, cached)
    _check(config, model, vocab_size)
    set_behaviour(config, model)
    kind = model_class(model.objective, config)
    check_attention(kind, model)
    network, report = _read(kind, source, config, model.init, cached)
    body = [key for key in report["missing_keys"] if key.startswith(f"{kind.base_model_prefix}.")]
    if body or report["mismatched_keys"]:
        keys = ", ".join(sorted(map(str, body or report["mismatched_keys"]))[:3])
        raise ValueError(f"model.init: {model.init!r} lacks weights of {kind.__name__} (such as {keys}); use weights of that architecture")
    if report["missing_keys"]:
        print(f"model.init: {model.init} has no weights for the head ({', '.join(sorted(report['missing_keys']))}); it starts from the seed")
    return network


def _read(kind: type[PreTrainedModel], source: str, config: PretrainedConfig, init: str, cached: bool) -> tuple[PreTrainedModel, dict[str, list[str]]]:
    try:
        network, report = kind.from_pretrained(
            source, config=config, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, local_files_only=cached, output_loading_info=True
        )
    except (OSError, SafetensorError) as error:
        raise ValueError(f"model.init: {init!r} has no readable model.safetensors ({_first_line(error)}); pickled weights are never loaded") from None
    return network, report


def _config(source: str, init: str, cached: bool) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=cached)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"model.init: {init!r} has no configuration that transformers can read: {_first_line(error)}") from None
    return config


def _check(config: PretrainedConfig, model: Model, vocab_size: int) -> None:
    """Everything in params.yaml that the weights must agree with; all faults at once."""
    faults = []
    if config.model_type != model.architecture:
        faults.append(f"model.architecture: {model.architecture!r}, but the weights are {config.model_type!r}; set it to that")
    if not is_headless(config) and objective_of(config) != model.objective:
        faults.append(f"model.objective: {model.objective!r}, but the weights are a {config.architectures[0]}; set it to {objective_of(config)!r}")
    if not vocab_size <= config.vocab_size <= vocab_size + PADDED_ENTRIES:
        own = model.init if model.init.startswith("hub:") else f"a folder inputs/tokenizer/{Path(model.init).name} with the tokenizer files of {model.init}"
        entries = f"the tokenizer has {vocab_size} entries, the weights {config.vocab_size}"
        faults.append(f"tokenizer.source: {entries}, so token ids would mean something else to the model; set it to the model's own: {own}")
    most = positions(config)
    if most is not None and model.sequence_length > most:
        faults.append(f"model.sequence_length: {model.sequence_length}, but the weights have {most} positions; set it to at most that")
    if faults:
        raise ValueError("\n  ".join([f"model.init: {model.init!r} does not fit the other parameters:", *faults]))


def _locate(init: str) -> tuple[str, bool]:
    """Where the weights are, for from_pretrained, and whether that needs no network."""
    if init.startswith("hub:"):
        return _hub(init.removeprefix("hub:"))
    folder = Path(init)
    if not folder.is_dir():
        raise ValueError(f"model.init: {init!r} is no folder; put the model's files there (a symlink will do), or set model.init: scratch")
    if not (folder / "config.json").is_file():
        raise ValueError(f"model.init: {init!r} holds no config.json; allowed: a Hugging Face model folder with config.json and model.safetensors")
    if not list(folder.glob("*.safetensors")):
        raise ValueError(f"model.init: {init!r} holds no *.safetensors file; pickled weights are never loaded: save them with save_pretrained first")
    return init, True


def _hub(model_id: str) -> tuple[str, bool]:
    """A model that is in the cache is read from there; only another one needs the network, and its absence shows at once."""
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model_id, "config.json"), str):
        return model_id, True
    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _unreachable(constants.ENDPOINT)
    if reason:
        raise ValueError(
            f"model.init: 'hub:{model_id}' is not in the local cache and the hub cannot be reached ({reason}); "
            "connect once to download it, or put the model's files under inputs/weights/ and name that folder"
        )
    return model_id, False


def _unreachable(endpoint: str) -> str | None:
    """Why the hub does not answer; None when it does, or when a proxy stands between and only the download itself can tell."""
    if urllib.request.getproxies():
        return None
    parts = urlsplit(endpoint)
    try:
        socket.create_connection((parts.hostname, parts.port or 443), timeout=REACH_SECONDS).close()
    except OSError as error:
        return f"{parts.hostname}: {error}"
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
