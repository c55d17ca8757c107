"""A saved model is whole, loads anywhere with the same numbers, and has the same bytes each time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from stages.models.storage import load, save
from tests.models.made import CAPPED, SCALED, TESTED, batch, network


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("architecture", "objective"), [*TESTED, *SCALED, CAPPED])
def test_it_loads_here_and_with_plain_transformers(architecture: str, objective: str, tmp_path: Path, tokenizer: Path) -> None:
    attention = "eager" if architecture == CAPPED[0] else "sdpa"
    model, (inputs, _) = network(architecture, objective, attention=attention), batch()
    folder = tmp_path / "models" / "model"
    save(model, folder, tokenizer)
    plain = (AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM).from_pretrained(folder)
    for other in (load(folder), plain):
        assert not other.training
        assert torch.equal(other(input_ids=inputs).logits, model(input_ids=inputs).logits)
    assert set(contents(folder)) >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert not [name for name in contents(folder) if name.endswith((".bin", ".pt", ".pkl"))]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_the_same_weights_give_the_same_bytes(tmp_path: Path, tokenizer: Path) -> None:
    for name in ("one", "two"):
        save(network(), tmp_path / name, tokenizer)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_compiled_model_leaves_its_wrapper_behind(tmp_path: Path, tokenizer: Path) -> None:
    model = network()
    save(model, tmp_path / "plain", tokenizer)
    save(torch.compile(model, backend="eager"), tmp_path / "compiled", tokenizer)
    assert contents(tmp_path / "plain") == contents(tmp_path / "compiled")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(network(seed=1), tmp_path / "model", tokenizer)
    before = contents(tmp_path / "model")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        save(network(seed=2), tmp_path / "model", tokenizer)
    assert contents(tmp_path / "model") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "tokenizer"]


def test_what_a_killed_write_left_is_no_hindrance(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / ".model.new").mkdir()
    (tmp_path / ".model.new" / "half").write_text("")
    (tmp_path / ".model.old").mkdir()
    save(network(), tmp_path / "model", tokenizer)
    assert "half" not in contents(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "tokenizer"]


def test_a_write_killed_between_two_renames_has_lost_nothing(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(network(seed=1), tmp_path / "model", tokenizer)
    before = contents(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / ".model.old")
    monkeypatch.setattr("shutil.copyfile", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(network(seed=2), tmp_path / "model", tokenizer)
    assert contents(tmp_path / "model") == before


def test_a_missing_model_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dvc repro train"):
        load(tmp_path / "model")


def test_a_damaged_model_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    save(network(), tmp_path / "model", tokenizer)
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="readable model"):
        load(tmp_path / "model")


def test_changing_a_loaded_model_leaves_its_file_alone(tmp_path: Path, tokenizer: Path) -> None:
    """The weights may be mapped into memory: training must not write through."""
    save(network(), tmp_path / "model", tokenizer)
    before, model = contents(tmp_path / "model"), load(tmp_path / "model")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3)
    assert contents(tmp_path / "model") == before


@pytest.mark.parametrize(("architecture", "objective"), TESTED)
def test_the_saved_model_writes_text_with_a_cache_and_is_scored_without(architecture: str, objective: str, tmp_path: Path, tokenizer: Path) -> None:
    model = network(architecture, objective)
    save(model, tmp_path / "model", tokenizer)
    assert not model.config.use_cache
    assert not load(tmp_path / "model").config.use_cache
    plain = (AutoModelForCausalLM if objective == "causal" else AutoModelForMaskedLM).from_pretrained(tmp_path / "model")
    assert plain.config.use_cache
    if objective == "causal":
        assert plain.generation_config.use_cache
