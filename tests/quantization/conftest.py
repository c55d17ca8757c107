"""Each architecture's model, its graph and its quantized folders, made once for all tests here: an export takes seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnx_ir
import pytest

from stages.models.linearize import linearize
from stages.models.storage import load
from stages.quantization.convert import convert
from stages.quantization.counts import Counts
from stages.quantization.export import export
from tests.quantization.made import learn, make_model, save_model


@dataclass(frozen=True)
class Quantized:
    """A model folder, the model in it, and one quantized folder made from it."""

    source: Path
    model: Any
    folder: Path
    counts: Counts


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from architecture to a model's folder; the gpt2 one has learned something."""

    @cache
    def make(architecture: str) -> Path:
        model = make_model(architecture)
        return save_model(learn(model) if architecture == "gpt2" else model, tmp_path_factory.mktemp(architecture) / "model")

    return make


@pytest.fixture(scope="session")
def exported(source: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """A function from architecture to the model, with linear layers only, and the file of its graph."""

    @cache
    def make(architecture: str) -> tuple[Any, Path]:
        model = load(source(architecture))
        linearize(model)
        path = tmp_path_factory.mktemp("graph") / f"{architecture}.onnx"
        onnx_ir.save(export(model), path)
        return model, path

    return make


@pytest.fixture(scope="session")
def quantized(source: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Quantized]:
    """A function from architecture and variant to what was made of it."""

    @cache
    def make(architecture: str, variant: str) -> Quantized:
        folder = tmp_path_factory.mktemp(f"{architecture}-{variant}") / "quantized"
        model = load(source(architecture))
        counts = convert(variant, model, source(architecture), folder)
        return Quantized(source(architecture), model, folder, counts)

    return make
