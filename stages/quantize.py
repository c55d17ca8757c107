"""DVC stage `quantize`: int8 variants of the trained model, each measured beside it; the best one is kept. `python -m stages.quantize`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.params import Params, load
from stages.tracking.console import number, size, table
from stages.tracking.curves import Curve
from stages.tracking.run import stage

if TYPE_CHECKING:
    from stages.quantization.compare import Comparison

MODEL, QUANTIZED = Path("models/model"), Path("models/quantized")
CURVE = Path("plots/quantization.csv")


def main() -> None:
    params = load()
    with stage("quantize", params.model_dump(mode="json"), experiment=params.tracking.experiment) as run:
        QUANTIZED.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".quantized.", dir=QUANTIZED.parent) as place:
            comparison = compare(params, Path(place))
            run.report(comparison.report())
            draw(comparison)
            show(comparison)
            publish(comparison, Path(place))


def compare(params: Params, place: Path) -> "Comparison":
    """All variants of the trained model, made in `place` and measured on the test split."""
    from stages.models.storage import load as load_model
    from stages.quantization import compare as comparing
    from stages.quantization.yardstick import yardstick

    model = load_model(MODEL)
    return comparing.compare(
        model,
        MODEL,
        place,
        params.quantize.variants,
        yardstick(params, model),
        max_perplexity_increase=params.quantize.max_perplexity_increase,
        say=lambda text: print(f"quantize: {text}", flush=True),
    )


def publish(comparison: "Comparison", place: Path) -> None:
    """Keep the best variant; ValueError when every one is refused."""
    from stages.quantization.compare import publish as move

    if comparison.best is None:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in comparison.refusals.items())
        raise ValueError(f"no variant of quantize.variants is good enough:{reasons}\nraise quantize.max_perplexity_increase, or train the model further")
    move(place / comparison.best, QUANTIZED)


def draw(comparison: "Comparison") -> None:
    """The sizes, perplexities and speeds as a curve for DVC's plots."""
    with Curve(CURVE, ("variant", "bytes", "perplexity", "prefill_tokens_per_second", "decode_tokens_per_second")) as curve:
        for name, figures in comparison.report().items():
            if isinstance(figures, dict):
                curve.row(variant=name, **{column: figures.get(column) for column in curve.columns[1:]})


def show(comparison: "Comparison") -> None:
    """A table for a person."""
    columns = ("variant", "size", "of fp32", "perplexity", "change", "prefill", "decode", "verdict")
    table("", columns, [_row(name, figures) for name, figures in comparison.report().items() if isinstance(figures, dict)])


def _row(name: str, figures: dict[str, Any]) -> tuple[str, ...]:
    def cell(key: str, text: str) -> str:
        return "" if figures.get(key) is None else text.format(figures[key])

    return (
        name,
        "" if "bytes" not in figures else size(figures["bytes"]),
        cell("size_ratio", "{:.3f}"),
        "" if "perplexity" not in figures else number(figures["perplexity"]),
        cell("perplexity_increase", "{:+.2%}"),
        cell("prefill_speedup", "{:.2f} x"),
        cell("decode_speedup", "{:.2f} x"),
        str(figures.get("verdict", "")),
    )


if __name__ == "__main__":
    main()
