"""torch.compile: the same training, weights without a prefix, a clear error without a compiler."""

import pytest
import torch

from stages.data.tokenizer import train as train_tokenizer
from stages.models.storage import load, save
from stages.training.compiling import compile_layers, warm_up
from stages.training.fit import fit
from stages.training.length import Length
from stages.training.precision import Precision
from stages.training.schedule import schedule
from stages.training.validation import mean_loss
from tests.training.made import flat, make_adamw, make_model, whole

FP32, CPU = Precision("fp32", "cpu"), torch.device("cpu")


def losses(model):
    seen = []
    run = {"length": Length("steps", 4), "learning_rate": schedule("constant", peak=1e-2)}
    fit(model, iter([whole(4, seed=seed) for seed in range(4)]), make_adamw(model), loss_chunk=64, on_step=lambda step: seen.append(step.loss), **run)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])  # layers, and the whole body
def test_a_compiled_model_trains_the_same_and_loads_without_compile(tmp_path, mode):
    """CASES: weights saved from a compiled model carry a prefix and load nowhere else."""
    plain, compiled = make_model(), make_model()
    names, before = list(compiled.state_dict()), flat(compiled.parameters())
    compile_layers(compiled, mode)
    assert warm_up(compiled, whole(4), precision=FP32, loss_chunk=64) > 0
    assert torch.equal(before, flat(compiled.parameters()))
    assert all(parameter.grad is None for parameter in compiled.parameters())
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    assert list(compiled.state_dict()) == names

    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    train_tokenizer(iter([["a b c"]]), 300).save(str(tokenizer / "tokenizer.json"))
    save(compiled, tmp_path / "model", tokenizer)
    loaded = load(tmp_path / "model")
    settings = {"precision": FP32, "device": CPU, "loss_chunk": 64}
    assert mean_loss(loaded, [whole(4)], **settings) == pytest.approx(mean_loss(compiled, [whole(4)], **settings), rel=1e-5)


@pytest.mark.slow
def test_without_a_compiler_the_error_says_what_to_do(monkeypatch):
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(inductor, "force_disable_caches", True)
    model = make_model(num_layers=1)
    compile_layers(model, "default")
    with pytest.raises(ValueError, match=r"train.compile is on, but torch could not compile .*install a C\+\+ compiler"):
        warm_up(model, whole(2), precision=FP32, loss_chunk=64)
