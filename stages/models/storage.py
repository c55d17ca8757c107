"""A model as a plain Hugging Face folder (safetensors, config, tokenizer): written whole or not at all, read without pickle."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging

from stages.models.architecture import model_class, objective_of
from stages.models.forward import unwrap


def save(model: nn.Module, folder: Path, tokenizer_folder: Path) -> None:
    """Write `model` and the tokenizer's files to `folder`, replacing it; compiled or data-parallel wrappers are left behind.

    The same weights give the same bytes. A write that fails leaves what stood there before.
    """
    network = unwrap(model)
    logging.disable_progress_bar()
    temporary, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():
        old.rename(folder)
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(network, temporary, tokenizer_folder)
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path) -> PreTrainedModel:
    """The model that `save` wrote, on the CPU, float32, in evaluation mode."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no model (config.json is missing); make it with `dvc repro train` (or bring it back with `dvc checkout`)")
    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    config.use_cache = False  # scoring has no use for it
    kind = model_class(objective_of(config), config)
    attention = "sdpa" if kind._supports_sdpa else "eager"
    try:
        model: PreTrainedModel = kind.from_pretrained(folder, config=config, dtype=torch.float32, use_safetensors=True, attn_implementation=attention)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder} holds no readable model.safetensors ({error}); bring it back with `dvc checkout` or train again") from None
    return model.eval()


@contextmanager
def _cache_wanted(network: PreTrainedModel) -> Iterator[None]:
    """Training keeps no keys and values, but who loads the saved model to write text with it wants them kept: without, each token costs a whole pass."""
    configs = [config for config in (network.config, getattr(network, "generation_config", None)) if config is not None]
    before = [config.use_cache for config in configs]
    for config in configs:
        config.use_cache = True
    try:
        yield
    finally:
        for config, value in zip(configs, before, strict=True):
            config.use_cache = value


def _write(network: PreTrainedModel, folder: Path, tokenizer_folder: Path) -> None:
    """All files of the model folder, on disk before this returns."""
    with _cache_wanted(network):
        network.save_pretrained(folder)
    for source in sorted(tokenizer_folder.iterdir()):
        shutil.copyfile(source, folder / source.name)
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
