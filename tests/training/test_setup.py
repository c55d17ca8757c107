"""From params and tokens to a training: what is taken from where, and every fault before the work begins."""

import numpy as np
import pytest
import torch

from stages.data.shards import read_meta
from stages.training.accumulation import DynamicAccumulation
from stages.training.length import Length
from stages.training.setup import prepare
from tests.data.made import token_folder
from tests.training.made import ARCHITECTURES, SEQUENCE, flat, make_params

TOKENS = {"train": 3 + np.arange(900) * 2 % 5, "validation": 3 + np.arange(87) * 2 % 5, "test": np.arange(3, 60)}


def ready(folder, changes=None, tokens=None):
    token_folder(folder, {**TOKENS, **(tokens or {})})
    return prepare(make_params(changes), read_meta(folder), folder)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_trains_validates_and_learns(tmp_path, architecture):
    setup = ready(
        tmp_path, {"model": {"architecture": architecture, "objective": ARCHITECTURES[architecture]}, "train": {"max_tokens": 1280, "learning_rate": 0.01}}
    )
    before, losses = setup.validate(), []
    done = setup.fit(lambda step: losses.append(step.loss))
    assert done.steps == len(losses) == 1280 // (4 * SEQUENCE)
    assert sum(losses[-5:]) < sum(losses[:5])
    assert setup.validate() < before
    assert setup.precision.name == "fp32"
    assert setup.facts()["fused_optimizer"] is True


def test_the_same_seed_gives_the_same_weights_and_another_one_others(tmp_path):
    def weights(seed, name):
        setup = ready(tmp_path / name, {"seed": seed, "model": {"dropout": 0.1}})
        torch.rand(seed + 3)  # the global generator's state must not matter
        setup.fit()
        return flat(setup.model.parameters())

    first = weights(1, "a")
    assert torch.equal(first, weights(1, "b"))
    assert not torch.equal(first, weights(2, "c"))


def test_workers_change_nothing(tmp_path):
    found = []
    for name, loader in (("none", {"workers": 0}), ("two", {"workers": 2, "prefetch": 2})):
        setup = ready(tmp_path / name, {"train": loader})
        setup.fit(length=Length("steps", 6))
        found.append(flat(setup.model.parameters()))
    assert torch.equal(*found)


def test_another_length_may_be_asked_for(tmp_path):
    setup = ready(tmp_path)
    assert setup.fit(length=Length("steps", 2)).steps == 2
    assert setup.length == Length("tokens", 1024)


def test_epochs_know_their_sequences(tmp_path):
    setup = ready(tmp_path, {"train": {"max_tokens": None, "max_epochs": 1.5, "batch_size": 8}})
    done = setup.fit()
    assert len(setup.train) == (900 - 1) // SEQUENCE == 56
    assert (done.epoch, done.sequences, done.steps) == (1, 32, 7 + 4)  # the first step at or behind 1.5 epochs


def test_dynamic_accumulation_follows_the_validation_loss(tmp_path):
    setup = ready(tmp_path, {"train": {"dynamic_accumulation": {"max_steps": 4, "patience": 1, "min_improvement": 0.01}}})
    assert isinstance(setup.accumulation, DynamicAccumulation)
    sizes = []

    def on_step(step) -> None:
        sizes.append(step.accumulation_steps)
        setup.adapt(1.0)

    setup.fit(on_step, length=Length("steps", 5))
    assert sizes == [1, 1, 2, 4, 4]
    assert setup.facts()["accumulation_steps"] == 4
    ready(tmp_path / "off").adapt(1.0)  # nothing to adapt


def test_checkpointing_is_counted(tmp_path):
    assert ready(tmp_path, {"train": {"activation_checkpointing": "all"}}).facts()["checkpointed_layers"] == 2


@pytest.mark.parametrize("tokens", [2, 5, SEQUENCE, SEQUENCE + 1, 5 * SEQUENCE])
def test_a_short_validation_split_still_counts_every_token(tmp_path, tokens):
    """CASES: a validation split smaller than one batch, or one block."""
    setup = ready(tmp_path, tokens={"validation": np.arange(3, 3 + tokens)})
    shard = torch.arange(3, 3 + tokens)
    with torch.no_grad():
        sums = [setup.model.eval()(input_ids=shard[None, i : min(i + SEQUENCE, tokens - 1)], labels=None).logits for i in range(0, tokens - 1, SEQUENCE)]
    loss = torch.nn.functional.cross_entropy(torch.cat([part[0] for part in sums]), shard[1:])
    assert setup.validate() == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "tokens", "message"),
    [
        ({}, {"train": np.arange(3, 13)}, r"the train split holds 10 tokens, but model.sequence_length 16"),
        ({}, {"validation": np.arange(3, 4)}, r"the validation split holds 1 tokens.*data.validation"),
        ({"train": {"activation_checkpointing": 9}}, {}, r"train.activation_checkpointing is 9, but GPT2LMHeadModel has 2 layers"),
        ({"model": {"architecture": "no-such"}}, {}, r"model.architecture"),
    ],
)
def test_faults_come_before_the_work(tmp_path, changes, tokens, message):
    with pytest.raises(ValueError, match=message):
        ready(tmp_path, changes, tokens)


def test_a_device_that_is_not_here_is_refused_first(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ValueError, match="device is cuda"):
        ready(tmp_path, {"device": "cuda"})
