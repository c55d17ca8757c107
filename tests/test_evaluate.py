"""The stage, as DVC runs it: its report is what plain transformers computes, its gate and its errors decide the exit code."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMALL, Project, copy_project, merge
from tests.evaluation.made import TEXT, text_split

LENGTH = 24


def prepared(folder: Path, objective: str = "causal", damage: Callable[[Any], None] = lambda model: None, **evaluate: Any) -> Project:
    """A project whose tokens and model lie ready, so that only this stage runs."""
    from stages.models.build import build
    from stages.models.storage import save
    from tests.models.made import tiny

    project = copy_project(folder)
    architecture = "gpt2" if objective == "causal" else "bert"
    changes: dict[str, Any] = {"model": {"objective": objective, "architecture": architecture, "sequence_length": LENGTH}, "evaluate": evaluate}
    merge(changes, {"model": {name: value for name, value in SMALL["model"].items() if name != "sequence_length"}})
    project.set(SMALL)
    project.set(changes)
    _, tokenizer = text_split(folder / "data/tokens", [TEXT * 5, TEXT[::-1] * 5])
    tokenizers = folder / "data/tokenizer"
    tokenizers.mkdir()
    tokenizer.save(str(tokenizers / "tokenizer.json"))
    model = build(tiny(architecture, objective, sequence_length=LENGTH), vocab_size=tokenizer.get_vocab_size(), end_of_text=0, pad_token=1, seed=1)
    damage(model)
    save(model, folder / "models/model", tokenizers)
    return project


def run(project: Project, *, check: bool = True) -> Any:
    return project.run("python", "-m", "stages.evaluate", check=check)


def report(project: Project) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((project.folder / "reports/evaluate.json").read_text("utf-8"))
    return values


@pytest.mark.slow
def test_the_report_is_what_plain_transformers_computes(tmp_path: Path) -> None:
    """Windows and losses written out here once more, with nothing of ours but the token file."""
    import numpy as np
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    project = prepared(tmp_path)
    output = run(project).stdout
    found = report(project)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "models/model")
    tokens = torch.from_numpy(np.fromfile(tmp_path / "data/tokens/test.bin", np.uint16).astype(np.int64))
    nats, scored, start = 0.0, 0, 0
    with torch.no_grad():
        while scored < len(tokens) - 1:
            start = min(start, len(tokens) - 1 - LENGTH)
            logits = model(input_ids=tokens[None, start : start + LENGTH]).logits[0]
            losses = F.cross_entropy(logits.double(), tokens[start + 1 : start + LENGTH + 1], reduction="none")
            nats += losses[scored - start :].sum().item()
            scored, start = start + LENGTH, start + LENGTH // 2
    assert found["tokens"] == scored == len(tokens) - 1
    assert found["loss"] == pytest.approx(nats / scored, abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats / scored), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / found["text_bytes"], rel=1e-5)
    text = (tmp_path / "data/tokens/test.txt").read_bytes()
    assert 0 < len(text) - found["text_bytes"] < 10
    assert {"zlib_bits_per_byte", "bz2_bits_per_byte", "xz_bits_per_byte", "unigram_bits_per_byte", "unigram_loss"} <= found.keys()
    assert found["gate_passed"] == 1
    assert (tmp_path / "plots/loss_by_position.csv").read_text().startswith("position,loss\n1,")
    assert "The" in (tmp_path / "evaluation/samples.md").read_text("utf-8")
    assert all(word in output for word in ("perplexity", "bits per byte", "zlib", "# Samples"))


@pytest.mark.slow
def test_a_masked_model_has_an_accuracy_and_no_bits_per_byte(tmp_path: Path) -> None:
    project = prepared(tmp_path, "masked")
    assert "masked accuracy" in run(project).stdout
    found = report(project)
    assert 0 <= found["masked_accuracy"] <= 1
    assert "bits_per_byte" not in found
    assert 0 < found["tokens"] < 500


@pytest.mark.slow
def test_the_gate_fails_the_stage_after_the_report(tmp_path: Path) -> None:
    project = prepared(tmp_path, gate={"max_perplexity": 2.0, "fail_stage": True})
    ended = run(project, check=False)
    assert ended.returncode != 0
    assert "evaluate.gate.max_perplexity 2" in ended.stdout and "Traceback" not in ended.stdout
    assert report(project)["gate_passed"] == 0
    project.set({"evaluate": {"gate": {"fail_stage": False}}})
    assert "misses evaluate.gate.max_perplexity 2" in run(project).stdout
    assert report(project)["gate_passed"] == 0


@pytest.mark.slow
def test_a_diverged_model_fails_the_stage_without_a_report(tmp_path: Path) -> None:
    import torch

    def nan(model: Any) -> None:
        with torch.no_grad():
            model.get_input_embeddings().weight[5] = math.nan

    project = prepared(tmp_path, damage=nan)
    ended = run(project, check=False)
    assert ended.returncode != 0
    assert "the loss on the test split is nan" in ended.stdout and "Traceback" not in ended.stdout
    assert not (tmp_path / "reports/evaluate.json").exists()
