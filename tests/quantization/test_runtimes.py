"""A quantized folder as its user has it: whole or refused, light to load, the same with and without a cache, free of pickle."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import onnxruntime
import pytest

from stages.quantization.convert import weight_bytes
from stages.quantization.runtimes import TorchSession, load
from tests.quantization.made import ROOT, some_tokens

VARIANTS = ["onnxruntime", "torch"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_folder_stands_alone(variant: str, quantized: Callable[[str, str], Any]) -> None:
    made = quantized("gpt2", variant)
    weights = {"onnxruntime": "model.onnx", "torch": "int8.safetensors"}[variant]
    names = {path.name for path in made.folder.iterdir()}
    assert names == {"manifest.json", "config.json", "generation_config.json", "tokenizer.json", weights}
    manifest = json.loads((made.folder / "manifest.json").read_text("utf-8"))
    assert (manifest["variant"], manifest["objective"], manifest["weights"]) == (variant, "causal", [weights])
    assert manifest["layers_quantized"] == made.counts.layers == 5
    assert weight_bytes(made.folder) == (made.folder / weights).stat().st_size


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_smaller_and_computes_nearly_the_same(variant: str, quantized: Callable[[str, str], Any]) -> None:
    made = quantized("gpt2", variant)
    assert weight_bytes(made.folder) < 0.6 * (made.source / "model.safetensors").stat().st_size
    tokens = some_tokens(2, 20)
    exact = TorchSession(made.model)(tokens)
    assert 0 < np.abs(load(made.folder)(tokens) - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cache_continues_the_sequence(variant: str, quantized: Callable[[str, str], Any]) -> None:
    session = load(quantized("gpt2", variant).folder)
    tokens = some_tokens(2, 16)
    _, cache = session.extend(tokens[:, :9])
    rest, _ = session.extend(tokens[:, 9:], cache)
    whole = session(tokens)[:, 9:]
    assert rest.shape == whole.shape
    assert np.abs(rest - whole).max() < 0.1 * np.abs(whole).max()


def test_a_masked_model_comes_back_too(quantized: Callable[[str, str], Any]) -> None:
    made = quantized("bert", "torch")
    tokens = some_tokens(1, 10)
    exact = TorchSession(made.model)(tokens)
    assert np.abs(load(made.folder)(tokens) - exact).max() < 0.1 * np.abs(exact).max()


def test_the_onnx_variant_needs_neither_torch_nor_transformers(quantized: Callable[[str, str], Any]) -> None:
    code = "import sys; from stages.quantization.runtimes import load; load(sys.argv[1])([[3, 4]]); print({'torch', 'transformers'} & set(sys.modules))"
    folder = str(quantized("gpt2", "onnxruntime").folder)
    assert subprocess.run([sys.executable, "-c", code, folder], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip() == "set()"


def test_the_manifest_tells_enough_to_run_it_with_onnxruntime_alone(quantized: Callable[[str, str], Any]) -> None:
    folder = quantized("gpt2", "onnxruntime").folder
    plain = onnxruntime.InferenceSession(folder / "model.onnx")
    tokens = some_tokens(1, 5)
    past = {value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32) for value in plain.get_inputs() if value.name != "input_ids"}
    assert len(past) == 2
    assert np.array_equal(plain.run(["logits"], {"input_ids": tokens, **past})[0], load(folder)(tokens))
    assert all(word in json.loads((folder / "manifest.json").read_text("utf-8"))["run"] for word in ("model.onnx", "input_ids", "past_key_values", "present"))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("spoil", ["cut", "flip", "remove"])
def test_a_changed_file_is_refused_by_name(variant: str, spoil: str, quantized: Callable[[str, str], Any], tmp_path: Path) -> None:
    folder = copytree(quantized("gpt2", variant).folder, tmp_path / "copy")
    weights = folder / {"onnxruntime": "model.onnx", "torch": "int8.safetensors"}[variant]
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content if spoil == "flip" else content[:-1])
    if spoil == "remove":
        weights.unlink()
    with pytest.raises(ValueError, match=weights.name):
        load(folder)


def test_a_folder_without_a_readable_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dvc repro quantize"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="not readable"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(ValueError, match="format 99"):
        load(tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_token_ids_of_the_wrong_shape_are_refused(variant: str, quantized: Callable[[str, str], Any]) -> None:
    with pytest.raises(ValueError, match=r"\(batch, sequence\)"):
        load(quantized("gpt2", variant).folder)([1, 2, 3])


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_pickle(variant: str, quantized: Callable[[str, str], Any]) -> None:
    files = sorted(quantized("gpt2", variant).folder.iterdir())
    assert len(files) == 5
    assert not [path.name for path in files if path.suffix not in (".json", ".onnx", ".safetensors")]
    assert not [path.name for path in files if path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04", b"PK")]
