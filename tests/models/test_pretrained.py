"""Weights trained before are taken as they are, or refused with the setting to change."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stages.models.build import build
from tests.models.made import CAPPED, VOCAB, batch, network, tiny

IDS = {"vocab_size": VOCAB, "end_of_text": 0, "pad_token": 1}
INIT = "inputs/weights/mine"


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(model: Any, name: str = "mine") -> Path:
    folder = Path("inputs/weights", name)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("architecture", "objective"), [("gpt2", "causal"), ("llama", "causal"), ("bert", "masked")])
def test_the_weights_are_those_of_the_folder(architecture: str, objective: str) -> None:
    original, (inputs, _) = network(architecture, objective), batch()
    saved(original)
    loaded = build(tiny(architecture, objective, init=INIT, num_layers=7), **IDS, seed=9).eval()
    assert torch.equal(loaded(input_ids=inputs).logits, original(input_ids=inputs).logits)
    assert loaded.config.num_hidden_layers == 2


def test_half_precision_weights_train_in_float32() -> None:
    saved(network().bfloat16())
    assert {parameter.dtype for parameter in build(tiny(init=INIT), **IDS, seed=1).parameters()} == {torch.float32}


def test_dropout_and_activation_are_those_of_the_parameters() -> None:
    saved(network(fused_activation=False))
    model = build(tiny(init=INIT, dropout=0.25), **IDS, seed=1)
    assert {part.p for part in model.modules() if isinstance(part, torch.nn.Dropout)} == {0.25}
    assert model.config.activation_function == "gelu_pytorch_tanh"


def test_links_to_files_will_do(tmp_path: Path) -> None:
    folder = saved(network())
    shutil.move(folder, tmp_path / "elsewhere")
    folder.mkdir()
    for file in (tmp_path / "elsewhere").iterdir():
        (folder / file.name).symlink_to(file)
    assert build(tiny(init=INIT), **IDS, seed=1)


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    folder = saved(network())
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{INIT} is a link to a folder, into which DVC does not look"):
        tiny(init=INIT)


def test_a_body_without_head_gets_one_from_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    original = network("bert", "masked")
    saved(original.bert)
    first, again = (build(tiny("bert", "masked", init=INIT), **IDS, seed=4) for _ in range(2))
    name = "cls.predictions.transform.dense.weight"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert torch.equal(first.bert.encoder.layer[0].output.dense.weight, original.bert.encoder.layer[0].output.dense.weight)
    assert "head" in capsys.readouterr().out


def test_padded_embeddings_are_allowed() -> None:
    saved(network())
    assert build(tiny(init=INIT), vocab_size=VOCAB - 5, end_of_text=0, pad_token=1, seed=1)


def no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "nothing_known"}))


def pickled(folder: Path) -> None:
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def damaged(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)


def incomplete(folder: Path) -> None:
    save_file({"transformer.wte.weight": torch.zeros(VOCAB, 32)}, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (no_folder, [INIT, "no folder"]),
        (no_config, [INIT, "config.json"]),
        (broken_config, [INIT, "config"]),
        (unknown_type, [INIT, "nothing_known"]),
        (pickled, [INIT, "safetensors", "never"]),
        (damaged, [INIT, "model.safetensors"]),
        (incomplete, [INIT, "lacks weights", "transformer.h.0"]),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(damage: Any, words: list[str]) -> None:
    damage(saved(network()))
    with pytest.raises(ValueError) as refusal:
        build(tiny(init=INIT), **IDS, seed=1)
    assert all(word in str(refusal.value) for word in words), refusal.value


@pytest.mark.parametrize(
    ("changes", "vocab_size", "words"),
    [
        ({"architecture": "llama"}, VOCAB, ["model.architecture", "llama", "gpt2"]),
        ({"objective": "masked", "architecture": "bert"}, VOCAB, ["model.objective", "causal"]),
        ({}, VOCAB + 1, ["tokenizer.source", str(VOCAB), str(VOCAB + 1), "inputs/tokenizer/mine"]),
        ({"sequence_length": 25}, VOCAB, ["model.sequence_length", "25", "24 positions"]),
    ],
)
def test_parameters_that_do_not_fit_are_named(changes: dict[str, Any], vocab_size: int, words: list[str]) -> None:
    saved(network())
    with pytest.raises(ValueError) as refusal:
        build(tiny(init=INIT, **changes), vocab_size=vocab_size, end_of_text=0, pad_token=1, seed=1)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_fused_attention_that_the_weights_do_not_have_is_refused() -> None:
    saved(network(*CAPPED, attention="eager"))
    changes = {"architecture": CAPPED[0], "init": INIT}
    build(tiny(attention="eager", **changes), vocab_size=VOCAB, end_of_text=0, pad_token=1, seed=1)
    with pytest.raises(ValueError, match=r"model\.attention: 'sdpa'.*set model\.attention: eager"):
        build(tiny(attention="sdpa", **changes), vocab_size=VOCAB, end_of_text=0, pad_token=1, seed=1)


def test_all_faults_come_at_once() -> None:
    saved(network())
    with pytest.raises(ValueError) as refusal:
        build(tiny(init=INIT, architecture="llama", sequence_length=25), vocab_size=5000, end_of_text=0, pad_token=1, seed=1)
    assert all(word in str(refusal.value) for word in ("model.architecture", "tokenizer.source", "model.sequence_length"))


def test_roberta_has_fewer_usable_positions_than_entries() -> None:
    saved(network("roberta", "masked"))
    assert build(tiny("roberta", "masked", init=INIT), **IDS, seed=1)
    with pytest.raises(ValueError, match="24 positions"):
        build(tiny("roberta", "masked", init=INIT, sequence_length=25), **IDS, seed=1)


def test_an_unreachable_hub_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    began = time.monotonic()
    with pytest.raises(ValueError) as refusal:
        build(tiny(init="hub:somebody/nothing-like-it"), **IDS, seed=1)
    assert time.monotonic() - began < 5
    assert all(word in str(refusal.value) for word in ("hub:somebody/nothing-like-it", "cannot be reached", "inputs/weights"))


def test_offline_on_purpose_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE"):
        build(tiny(init="hub:somebody/nothing-like-it"), **IDS, seed=1)
