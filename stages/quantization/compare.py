"""Every variant of a trained model, converted, loaded from its own folder, measured beside the fp32 model, and judged."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stages.quantization.convert import convert, weight_bytes
from stages.quantization.counts import Counts
from stages.quantization.reload import difference
from stages.quantization.runtimes import Session, TorchSession, load
from stages.quantization.speed import Speed, side_by_side
from stages.quantization.verdict import Figures, best, refusal
from stages.quantization.yardstick import Yardstick

FP32 = "fp32"
NAN_ACTIVATION = "ChooseQuantizationParams"  # stands in what torch says when it is to quantize NaN


@dataclass(slots=True)
class Comparison:
    """The fp32 model's figures, those of each variant that could be made, and why some are refused."""

    fp32_bytes: int
    fp32_perplexity: float = float("nan")
    fp32_speed: Speed | None = None
    figures: dict[str, Figures] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The best variant that is good enough, or None."""
        accepted = {name: figures for name, figures in self.figures.items() if name not in self.refusals}
        return best(accepted) if accepted else None

    def report(self) -> dict[str, Any]:
        """Everything for reports/quantize.json: a section for the fp32 model and one for each variant, and the name of the best."""
        assert self.fp32_speed is not None, "measured before it is reported"
        fp32 = {"bytes": self.fp32_bytes, "perplexity": self.fp32_perplexity, **asdict(self.fp32_speed)}
        sections = {name: self._section(name) for name in {**self.figures, **self.refusals}}
        return {"best": self.best or "none", FP32: fp32, **sections}

    def _section(self, name: str) -> dict[str, Any]:
        figures = self.figures[name].report() if name in self.figures else {}
        verdict = self.refusals.get(name) or ("best" if name == self.best else "good enough")
        return {**figures, "accepted": int(name not in self.refusals), "verdict": verdict}


def compare(
    model: nn.Module,
    source: Path,
    place: Path,
    variants: Sequence[str],
    yardstick: Yardstick,
    *,
    max_perplexity_increase: float,
    say: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Make each of `variants` of `model`, read from the folder `source`, as a folder in `place`, and measure it there.

    `model` computes the same as before, but its Conv1D layers are nn.Linear afterwards. `say` hears what is being done.
    """
    comparison = Comparison(sum(path.stat().st_size for path in source.glob("*.safetensors")))
    say(f"converting to {', '.join(variants)}")
    counts = _convert_all(model, source, place, variants, comparison)
    sessions: dict[str, Session] = {FP32: TorchSession(model), **{name: load(place / name, torch.get_num_threads()) for name in counts}}
    _measure(sessions, counts, place, yardstick, comparison, say)
    for name, figures in comparison.figures.items():
        if reason := refusal(figures, max_perplexity_increase):
            comparison.refusals[name] = reason
    return comparison


def _measure(
    sessions: dict[str, Session], counts: dict[str, Counts], place: Path, yardstick: Yardstick, comparison: Comparison, say: Callable[[str], None]
) -> None:
    """Fill in the figures of all sessions; those whose arithmetic fails are refused, and leave `sessions` and `counts`."""
    say(f"perplexity of {', '.join(sessions)} on the test split")
    perplexities = _perplexities(sessions, yardstick)
    for name in [name for name in counts if not math.isfinite(perplexities[name])]:  # it may not even run, so it is measured no further
        comparison.refusals[name] = f"its perplexity is {perplexities[name]}, that of the fp32 model {perplexities[FP32]}"
        del sessions[name], counts[name]
    say(f"speed: {yardstick.prompt.shape[1]} tokens at once, {yardstick.decode_tokens} one by one")
    speeds = side_by_side(sessions, yardstick.prompt, yardstick.decode_tokens)
    comparison.fp32_perplexity, comparison.fp32_speed = perplexities[FP32], speeds[FP32]
    say("logits in a fresh process")
    for name, counted in counts.items():
        drift = difference(place / name, sessions[name], yardstick.prompt, torch.get_num_threads())
        size = weight_bytes(place / name)
        comparison.figures[name] = Figures(counted, size, comparison.fp32_bytes, perplexities[name], perplexities[FP32], speeds[name], speeds[FP32], drift)


def _convert_all(model: nn.Module, source: Path, place: Path, variants: Sequence[str], comparison: Comparison) -> dict[str, Counts]:
    """The variants that could be made, and what became int8 in each; the others are refused."""
    counts = {}
    for name in dict.fromkeys(variants):
        try:
            counts[name] = convert(name, model, source, place / name)
        except torch.onnx.OnnxExporterError as error:
            comparison.refusals[name] = f"torch.onnx cannot export this model: {str(error).strip().splitlines()[0]}"
    return counts


def _perplexities(sessions: dict[str, Session], yardstick: Yardstick) -> dict[str, float]:
    """The perplexity of each session; NaN for a variant with a loss that is not finite, ValueError where that is so of the fp32 model itself."""
    perplexities = {FP32: yardstick.perplexity(sessions[FP32])}
    for name in [name for name in sessions if name != FP32]:
        try:
            perplexities[name] = yardstick.perplexity(sessions[name])
        except ValueError:  # what could be wrong with the data has been found with the fp32 model
            perplexities[name] = math.nan
        except RuntimeError as error:
            if NAN_ACTIVATION not in str(error):
                raise
            perplexities[name] = math.nan
    return perplexities


def publish(folder: Path, target: Path) -> None:
    """Move the finished `folder` to `target`, replacing what stands there."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)
