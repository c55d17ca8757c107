"""Which quantized variants are good enough, and which of them is the best."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stages.quantization.counts import Counts
from stages.quantization.speed import Speed

SAME_SIZE = 1.05  # files within 5 per cent of the smallest count as equally small
SAME_LOGITS = 1e-3  # largest difference allowed after a reload; equal bits are what is seen, but no runtime promises them


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one variant; `perplexity` and `speed` beside those of the fp32 model."""

    counts: Counts
    bytes: int
    fp32_bytes: int
    perplexity: float
    fp32_perplexity: float
    speed: Speed
    fp32_speed: Speed
    reload_difference: float

    @property
    def size_ratio(self) -> float:
        """Bytes on disk as a share of the fp32 weights' file."""
        return self.bytes / self.fp32_bytes

    @property
    def perplexity_increase(self) -> float:
        """A share: 0.01 is one per cent worse, negative is better, NaN where a perplexity is not finite."""
        return self.perplexity / self.fp32_perplexity - 1 if math.isfinite(self.perplexity) else math.nan

    def report(self) -> dict[str, float | int | None]:
        """Everything as numbers for reports/quantize.json."""
        speed, fp32 = self.speed, self.fp32_speed
        decodes = speed.decode_tokens_per_second is not None and fp32.decode_tokens_per_second is not None
        return {
            "layers_quantized": self.counts.layers,
            "tables_quantized": self.counts.tables,
            "share_quantized": self.counts.share,
            "bytes": self.bytes,
            "size_ratio": self.size_ratio,
            "perplexity": self.perplexity,
            "perplexity_increase": self.perplexity_increase,
            "prefill_tokens_per_second": speed.prefill_tokens_per_second,
            "prefill_speedup": speed.prefill_tokens_per_second / fp32.prefill_tokens_per_second,
            "decode_tokens_per_second": speed.decode_tokens_per_second,
            "decode_speedup": (speed.decode_tokens_per_second or 0) / (fp32.decode_tokens_per_second or 1) if decodes else None,
            "reload_difference": self.reload_difference,
        }


def refusal(figures: Figures, max_perplexity_increase: float) -> str | None:
    """Why a variant is refused, or None when it is good enough."""
    if not figures.counts.layers:
        return "nothing was quantized: the model has no linear layer"
    if figures.size_ratio >= 1:
        return f"it takes {figures.bytes} bytes, the fp32 model {figures.fp32_bytes}: it grew"
    if not figures.reload_difference <= SAME_LOGITS:
        return f"loaded in a fresh process its logits differ by up to {figures.reload_difference:.3g}"
    if not math.isfinite(figures.perplexity_increase):
        return f"its perplexity is {figures.perplexity}, that of the fp32 model {figures.fp32_perplexity}"
    if figures.perplexity_increase > max_perplexity_increase:
        return f"perplexity is {figures.perplexity_increase:.2%} worse, quantize.max_perplexity_increase allows {max_perplexity_increase:.2%}"
    return None


def best(accepted: Mapping[str, Figures]) -> str:
    """The smallest variant; among those of nearly its size the one with the fastest prefill."""
    smallest = min(figures.bytes for figures in accepted.values())
    near = {name: figures for name, figures in accepted.items() if figures.bytes <= smallest * SAME_SIZE}
    return max(near, key=lambda name: near[name].speed.prefill_tokens_per_second)
