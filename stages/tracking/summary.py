"""The experiment on one page, as Markdown: every stage's results, the model beside plain compressors, samples, and where the time went."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stages.tracking.console import duration, number, size
from stages.tracking.results import flat

Reports = Mapping[str, Mapping[str, Any]]
COMPRESSORS = ("zlib", "bz2", "xz")
MAX_SAMPLES = 1500  # characters

# What stands in the table: stage, its figure's dotted name, words for a person, and how the value is written.
ROWS: tuple[tuple[str, str, str, Callable[[Any], str]], ...] = (
    ("tokenize", "train.tokens", "tokens to train on", number),
    ("tokenize", "test.bytes", "text held out for the test", size),
    ("tokenize", "vocab_size", "entries of the tokenizer", number),
    ("train", "parameters", "parameters", number),
    ("train", "tokens", "tokens read", number),
    ("train", "steps", "steps", number),
    ("train", "last_loss", "loss of the last step", number),
    ("train", "best_validation_loss", "best validation loss", number),
    ("train", "tokens_per_second", "tokens per second", number),
    ("train", "device_peak_bytes", "peak memory", size),
    ("profile", "tokens_per_second", "tokens per second", number),
    ("profile", "mfu", "model FLOPs utilization", "{:.1%}".format),
    ("profile", "allocator_peak_bytes", "peak of live tensors", size),
    ("evaluate", "loss", "test loss (nats per token)", number),
    ("evaluate", "perplexity", "test perplexity", number),
    ("evaluate", "bits_per_byte", "test bits per byte", number),
    ("evaluate", "masked_accuracy", "accuracy on hidden tokens", "{:.1%}".format),
    ("evaluate", "tokens_per_second", "tokens per second", number),
    ("evaluate", "gate_passed", "gate passed", lambda value: "yes" if value else "no"),
)

# The same of the best int8 variant.
VARIANT: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("bytes", "size", size),
    ("size_ratio", "size, share of fp32", "{:.3f}".format),
    ("perplexity_increase", "change of perplexity", "{:+.2%}".format),
    ("prefill_speedup", "speed reading, times fp32", "{:.2f}".format),
    ("decode_speedup", "speed writing, times fp32", "{:.2f}".format),
)


def settings(params: Mapping[str, Any]) -> str:
    """What experiments differ by most often, in a line."""
    data, model, train = params["data"], params["model"], params["train"]
    shape = f"{model['num_layers']} x {model['hidden_size']}" if model["init"] == "scratch" else model["init"]
    step = f"batch {train['batch_size']} x {train['accumulation_steps']} x {model['sequence_length']} tokens"
    return f"{data['source']}; {model['architecture']} {shape}, {model['objective']}; learning rate {train['learning_rate']:g}; {step}."


def markdown(name: str, key: str, reports: Reports, samples: str = "", about: str = "") -> str:
    """The page. A figure that a stage did not report is left out; `samples` is Markdown too, its end is cut off when it is long; `about`: `settings`."""
    parts = [
        f"# {name}",
        verdict(reports),
        about,
        table(("stage", "figure", "value"), rows(reports)),
        "## Against plain compressors, on the same text" + "\n\n" + table(("", "bits per byte"), against(reports)) if against(reports) else "",
        "## Samples" + "\n\n" + shorten(_deeper(samples), MAX_SAMPLES) if samples.strip() else "",
        "## Where the time went\n\n" + table(("stage", "whole", "its own work", "starting, importing", "tracking"), times(reports)),
        f"Key `{key}`: the same for the same parameters, code, lock and inputs, here, in `reports/report.json` and in `dvc exp show`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def verdict(reports: Reports) -> str:
    """One sentence: did the network learn anything?"""
    figures = reports.get("evaluate", {})
    bits = figures.get("bits_per_byte")
    rivals = {name: value for name in COMPRESSORS if isinstance(value := figures.get(f"{name}_bits_per_byte"), float)}
    if isinstance(bits, float) and rivals:
        best = min(rivals, key=lambda name: rivals[name])
        words = "fewer than" if bits < rivals[best] else "more than"
        return f"**{bits:.3f} bits per byte** on text it has not seen, {words} {best}, the best compressor tried ({rivals[best]:.3f})."
    loss, unigram = figures.get("loss"), figures.get("unigram_loss")
    if isinstance(loss, float) and isinstance(unigram, float):
        words = "below" if loss < unigram else "not below"
        return f"**Loss {loss:.3f}** nats per token on text it has not seen, {words} that of guessing by frequency ({unigram:.3f})."
    return ""


def rows(reports: Reports) -> list[tuple[str, str, str]]:
    """The table of results, of every stage that has any."""
    found = []
    for stage, name, words, write in ROWS:
        value = dict(flat(reports.get(stage, {}))).get(name)
        if isinstance(value, int | float):
            found.append((stage, words, write(value)))
    return found + _quantized(reports.get("quantize", {}))


def headline(reports: Reports) -> dict[str, dict[str, Any]]:
    """The figures of the table by stage and name, as DVC's metrics: few enough to compare experiments by."""
    found: dict[str, dict[str, Any]] = {}
    for stage, name, _, _ in ROWS:
        value = dict(flat(reports.get(stage, {}))).get(name)
        if isinstance(value, int | float):
            found.setdefault(stage, {})[name] = value
    best, variant = _best(reports.get("quantize", {}))
    if variant:
        found["quantize"] = {"best": best, **{name: variant[name] for name, _, _ in VARIANT if isinstance(variant.get(name), int | float)}}
    return found


def _best(figures: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name and figures of the best int8 variant; none where every one was refused."""
    best = str(figures.get("best"))
    variant = figures.get(best)
    return best, variant if isinstance(variant, Mapping) else {}


def _quantized(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The best int8 variant beside fp32."""
    best, variant = _best(figures)
    shown = [(words, write(variant[name])) for name, words, write in VARIANT if isinstance(variant.get(name), int | float)]
    return [("quantize", "best variant", best), *(("quantize", f"{best}: {words}", value) for words, value in shown)] if variant else []


def against(reports: Reports) -> list[tuple[str, str]]:
    """Bits per byte of the model and of the compressors, the best first; none for a model that has no such figure."""
    figures = reports.get("evaluate", {})
    if not isinstance(figures.get("bits_per_byte"), float):
        return []
    found = {name: figures.get(f"{name}_bits_per_byte") for name in COMPRESSORS} | {"**this model**": figures["bits_per_byte"]}
    return [(name, f"{value:.3f}") for name, value in sorted(found.items(), key=lambda item: item[1] or 99.0) if isinstance(value, float)]


def times(reports: Reports) -> list[tuple[str, ...]]:
    """Seconds of every stage, as each measured them when it ran, and their sum."""
    lines = {stage: parts for stage, report in reports.items() if (parts := spent(report))}
    total = tuple(sum(column) for column in zip(*lines.values(), strict=True))
    return [(stage, *map(duration, parts)) for stage, parts in [*lines.items(), ("all", total)]]


def spent(report: Mapping[str, Any]) -> tuple[float, float, float, float] | None:
    """Seconds of one stage: whole, own work, starting and importing, tracking; None when it did not measure them."""
    seconds = report.get("seconds", {})
    if "total" not in seconds:
        return None
    start = float(seconds["start"]) + float(seconds.get("imports", 0.0))
    tracking = float(seconds["tracking"]) + float(seconds.get("waiting", 0.0))
    total = float(seconds["total"]) + float(seconds.get("waiting", 0.0))
    return total, total - start - tracking, start, tracking


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; text that could end a cell is escaped."""
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *escaped])


def shorten(text: str, limit: int) -> str:
    """The text's first lines, within `limit` characters."""
    if len(text) <= limit:
        return text.strip()
    return text[: text.rfind("\n", 0, limit) if "\n" in text[:limit] else limit].strip() + "\n\n(more in `evaluation/samples.md`)"


def _deeper(text: str) -> str:
    """Without a title of its own, and with headings one level down, so that they stay below this page's."""
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in text.splitlines() if not line.startswith("# "))
