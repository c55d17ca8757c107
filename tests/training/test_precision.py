"""Arithmetic: what auto takes, what autocast does to a step, and that a loss scale never shows in a figure."""

import math

import pytest
import torch

from stages.training.fit import fit
from stages.training.length import Length
from stages.training.precision import SMALL_MODEL_PARAMETERS, Precision, gradient_scaler, resolve
from stages.training.schedule import schedule
from tests.training.made import flat, make_adamw, make_model, make_params, padded, whole

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BIG = SMALL_MODEL_PARAMETERS


def run(precision="fp32", scale=None, steps=3, clip_norm=1.0, fused=True, batches=None):
    model, seen = make_model(), []
    optimizer = make_adamw(model, fused=fused)
    fit(
        model,
        iter(batches or [whole(4, seed=seed) for seed in range(steps)]),
        optimizer,
        length=Length("steps", steps),
        learning_rate=schedule("constant", peak=1e-3),
        clip_norm=clip_norm,
        precision=Precision(precision, "cpu"),
        scaler=None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale),
        on_step=lambda step: seen.append((step.loss, step.grad_norm)),
    )
    losses, norms = zip(*seen, strict=True)
    return losses, norms, model


def test_a_loss_scale_of_1024_does_not_show_in_the_gradient_norm():
    """CASES: clipping applied to still-scaled gradients."""
    _, reference, plain = run()
    _, scaled_fp32, clipped = run(scale=1024.0)
    _, scaled_fp16, _ = run("fp16", scale=1024.0)
    assert scaled_fp32 == pytest.approx(reference, rel=1e-5)
    assert scaled_fp16[0] == pytest.approx(reference[0], rel=0.01)
    assert scaled_fp16 == pytest.approx(reference, rel=0.01)
    assert reference[0] < 1024
    torch.testing.assert_close(flat(clipped.parameters()), flat(plain.parameters()), rtol=1e-4, atol=1e-6)


def test_the_clip_threshold_means_the_same_with_and_without_a_scale():
    _, _, plain = run(clip_norm=0.05)
    _, _, scaled = run(clip_norm=0.05, scale=1024.0)
    torch.testing.assert_close(flat(scaled.parameters()), flat(plain.parameters()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_stays_near_fp32_and_keeps_fp32_weights(precision):
    reference, _, _ = run()
    losses, _, model = run(precision, scale=1024.0 if precision == "fp16" else None)
    assert losses == pytest.approx(reference, rel=2e-3)
    assert losses != reference, "autocast did nothing"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fused_and_plain_adamw_agree_over_50_steps(precision):
    """CASES: fused AdamW with mixed precision gave NaN where the plain one did not."""
    batches = [padded([16, 7, 12, 16], seed=seed) for seed in range(50)]
    fused, _, _ = run(precision, steps=50, batches=batches)
    plain, _, _ = run(precision, steps=50, batches=batches, fused=False)
    assert len(fused) == 50
    assert all(map(math.isfinite, fused))
    assert fused == pytest.approx(plain, rel=1e-4 if precision == "fp32" else 1e-2)


def test_auto_keeps_small_models_in_fp32(monkeypatch):
    for device in (CPU, CUDA, torch.device("mps")):
        assert resolve("auto", device, BIG - 1) == Precision("fp32", device.type)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert resolve("auto", CUDA, BIG).name == "bf16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    assert resolve("auto", CUDA, BIG).name == "fp16"
    assert resolve("auto", torch.device("mps"), BIG).name == "fp32"


def test_auto_takes_bf16_on_a_cpu_only_with_matrix_units(monkeypatch):
    for units, expected in (({"amx_bf16": True}, "bf16"), ({"avx512_bf16": True}, "fp32"), ({}, "fp32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda units=units: units)
        assert resolve("auto", CPU, BIG).name == expected


def test_what_the_user_says_is_taken_or_refused(monkeypatch):
    for name in ("fp32", "bf16", "fp16"):
        assert resolve(name, CPU, 1) == Precision(name, "cpu")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old one")
    with pytest.raises(ValueError, match=r"train.precision is bf16, which an old one does not have; use fp16"):
        resolve("bf16", CUDA, 1)


def test_the_scaler_is_at_work_for_fp16_alone_and_takes_its_settings():
    settings = make_params({"train": {"loss_scale": {"initial": 512.0, "growth_interval": 7}}}).train.loss_scale
    for name, enabled in (("fp32", False), ("bf16", False), ("fp16", True)):
        assert gradient_scaler(Precision(name, "cpu"), settings).is_enabled() is enabled
    scaler = gradient_scaler(Precision("fp16", "cpu"), settings)
    assert (scaler.get_scale(), scaler.get_growth_interval(), scaler.get_growth_factor(), scaler.get_backoff_factor()) == (512.0, 7, 2.0, 0.5)
