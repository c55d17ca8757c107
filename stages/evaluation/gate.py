"""Whether a model meets the thresholds that params.yaml asks of it."""

from dataclasses import dataclass

from stages.params import Evaluate

_HIGHEST = {"max_perplexity": "perplexity", "max_bits_per_byte": "bits_per_byte"}
_LOWEST = {"min_masked_accuracy": "masked_accuracy"}


@dataclass(frozen=True)
class Verdict:
    """The outcome: a sentence for each threshold that was asked, and those among them that the model misses."""

    messages: list[str]
    missed: list[str]

    @property
    def passed(self) -> bool:
        return not self.missed


def judge(evaluate: Evaluate, figures: dict[str, float]) -> Verdict:
    """Hold `figures` (by name: perplexity, bits_per_byte, masked_accuracy) against the thresholds; params.yaml asks for none that the model does not have."""
    verdict = Verdict([], [])
    for threshold, name in {**_HIGHEST, **_LOWEST}.items():
        asked = getattr(evaluate.gate, threshold)
        if asked is None:
            continue
        met = figures[name] <= asked if threshold in _HIGHEST else figures[name] >= asked
        relation = "meets" if met else "misses"
        message = f"{name} {figures[name]:.4g} {relation} evaluate.gate.{threshold} {asked:g}"
        verdict.messages.append(message)
        if not met:
            verdict.missed.append(message)
    return verdict
