"""Plots as images, drawn from the stages' CSV files; what has no file or no rows is not drawn."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.tracking import curves
from stages.tracking.console import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Columns = dict[str, list[Any]]
DPI = 120
BLUE, RED, GREY = "#1f6fb2", "#c8442f", "#9aa7b2"


def draw(plots: Path, target: Path) -> list[Path]:
    """Every figure that the CSV files in `plots` allow, as PNG files in `target`; returns their paths."""
    target.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, painter in FIGURES.items():
        figure = painter(_read(plots))
        if figure is not None:
            path = target / f"{name}.png"
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
            drawn.append(path)
    return drawn


def _read(plots: Path) -> Callable[[str], Columns]:
    """A function that gives the columns of plots/<name>.csv; none at all where there is no such curve."""

    def columns(name: str) -> Columns:
        path = plots / f"{name}.csv"
        found = curves.read(path) if path.is_file() else {}
        return found if any(found.values()) else {}

    return columns


def _figure(panels: int = 1, height: float = 4.0) -> tuple[Any, list["Axes"]]:
    """A figure and its axes, two in a row."""
    from matplotlib.figure import Figure

    rows, columns = (panels + 1) // 2, min(panels, 2)
    figure = Figure(figsize=(4.5 * max(columns, 1.6), height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.set_axis_off()
    return figure, axes[:panels]


def _line(axes: "Axes", x: Sequence[Any], y: Sequence[Any], label: str, **style: Any) -> None:
    """A line through the points whose both coordinates are numbers."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if isinstance(a, float) and isinstance(b, float)]
    axes.plot([a for a, _ in points], [b for _, b in points], label=label, **style)


def _finish(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def loss(read: Callable[[str], Columns]) -> Any | None:
    """Training and validation loss over the tokens read."""
    train, validation = read("train"), read("validation")
    if not train:
        return None
    figure, (axes,) = _figure()
    _line(axes, train["tokens"], train["loss"], "train, each step", color=GREY, linewidth=0.6)
    _line(axes, train["tokens"], smooth(train["loss"]), "train, smoothed", color=BLUE)
    if validation:
        _line(axes, validation["tokens"], validation["loss"], "validation", color=RED, marker="o", markersize=3)
    axes.legend(frameon=False)
    _finish(axes, "Loss while training", "tokens read", "nats per token")
    return figure


def training(read: Callable[[str], Columns]) -> Any | None:
    """Learning rate, gradient norm, speed and memory over the tokens read."""
    train = read("train")
    wanted = {
        "learning_rate": ("Learning rate", 1.0, ""),
        "grad_norm": ("Gradient norm before clipping", 1.0, ""),
        "tokens_per_second": ("Tokens per second", 1.0, ""),
        "memory_bytes": ("Memory", 2**20, "MiB"),
    }
    there = {name: label for name, label in wanted.items() if any(isinstance(value, float) for value in train.get(name, ()))}
    if not there:
        return None
    figure, axes = _figure(len(there), height=3.2)
    for place, (name, (title, unit, label)) in zip(axes, there.items(), strict=True):
        _line(place, train["tokens"], [value / unit if isinstance(value, float) else None for value in train[name]], title, color=BLUE, linewidth=0.9)
        place.set_ylim(bottom=0)
        _finish(place, title, "tokens read", label)
    return figure


def loss_by_position(read: Callable[[str], Columns]) -> Any | None:
    """How much context helps."""
    columns = read("loss_by_position")
    if not columns:
        return None
    figure, (axes,) = _figure()
    _line(axes, columns["position"], columns["loss"], "", color=BLUE)
    _finish(axes, "How much context helps", "tokens before", "nats per token")
    return figure


def phases(read: Callable[[str], Columns]) -> Any | None:
    """Where a step's time goes."""
    columns = read("phases")
    if not columns:
        return None
    figure, (axes,) = _figure(height=3.2)
    _bars(axes, columns["phase"], [value * 1e3 if isinstance(value, float) else None for value in columns["seconds"]])
    _finish(axes, "Where a step's time goes", "milliseconds", "")
    return figure


def quantization(read: Callable[[str], Columns]) -> Any | None:
    """Size, perplexity and speed of every variant."""
    columns = read("quantization")
    wanted = {
        "bytes": ("Size on disk", 2**20, "MiB"),
        "perplexity": ("Perplexity", 1.0, "test split"),
        "prefill_tokens_per_second": ("Reading", 1.0, "tokens per second"),
        "decode_tokens_per_second": ("Writing", 1.0, "tokens per second"),
    }
    there = {name: label for name, label in wanted.items() if any(isinstance(value, float) for value in columns.get(name, ()))}
    if not there:
        return None
    figure, axes = _figure(len(there), height=3.0)
    for place, (name, (title, unit, label)) in zip(axes, there.items(), strict=True):
        _bars(place, columns["variant"], [value / unit if isinstance(value, float) else None for value in columns[name]])
        _finish(place, title, label, "")
    return figure


def _bars(axes: "Axes", names: Sequence[Any], values: Sequence[float | None]) -> None:
    """Horizontal bars, the first on top, each with its value; where there is no value there is no bar."""
    bars = axes.barh([str(name) for name in names], [value or 0.0 for value in values], color=BLUE)
    axes.bar_label(bars, labels=["" if value is None else number(value) for value in values], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)


def smooth(values: Sequence[Any], share: float = 0.05) -> list[float | None]:
    """Running mean over the last `share` of the whole, at least one value; a gap stays a gap and does not count."""
    width = max(1, round(len(values) * share))
    smoothed: list[float | None] = []
    for end in range(1, len(values) + 1):
        window = [value for value in values[max(0, end - width) : end] if isinstance(value, float)]
        smoothed.append(sum(window) / len(window) if window and isinstance(values[end - 1], float) else None)
    return smoothed


FIGURES: dict[str, Callable[[Callable[[str], Columns]], Any | None]] = {
    "loss": loss,
    "training": training,
    "loss_by_position": loss_by_position,
    "phases": phases,
    "quantization": quantization,
}
