"""A stage's results as valid JSON and as metrics: non-finite numbers become null and are named."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.tracking.outbox import replace_text

Values = Mapping[str, Any]
FOLDER = Path("reports")


def flat(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted names and their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def finite(values: Any, name: str = "") -> tuple[Any, dict[str, float]]:
    """`values` with null for every number that is not finite, and those numbers by dotted name. Keys become text, tuples lists, other numbers plain."""
    if isinstance(values, Mapping):
        parts = {str(part): finite(value, f"{name}.{part}" if name else str(part)) for part, value in values.items()}
        return {part: value for part, (value, _) in parts.items()}, {key: bad for _, found in parts.values() for key, bad in found.items()}
    if isinstance(values, list | tuple):
        items = [finite(value, f"{name}.{index}") for index, value in enumerate(values)]
        return [value for value, _ in items], {key: bad for _, found in items for key, bad in found.items()}
    if values is None or isinstance(values, str | bool | int):
        return values, {}
    if isinstance(values, Path):
        return values.as_posix(), {}
    value = float(values)
    return (value, {}) if math.isfinite(value) else (None, {name: value})


def path(stage: str) -> Path:
    """Where a stage's results lie."""
    return FOLDER / f"{stage}.json"


def write(stage: str, values: Values) -> None:
    """reports/<stage>.json, whole or not at all."""
    FOLDER.mkdir(exist_ok=True)
    replace_text(path(stage), json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read(stage: str) -> dict[str, Any]:
    """reports/<stage>.json; raises ValueError naming the file when it is absent or damaged."""
    place = path(stage)
    try:
        values = json.loads(place.read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{place} is missing; run `dvc repro {stage}`") from None
    except ValueError as error:
        raise ValueError(f"{place} is not valid JSON ({error}); run `dvc repro -f -s {stage}`") from None
    if not isinstance(values, dict):
        raise ValueError(f"{place} must hold an object, not {type(values).__name__}; run `dvc repro -f -s {stage}`")
    return values


def metrics(stage: str, values: Values, curves: frozenset[str] | set[str] = frozenset()) -> dict[str, float]:
    """The numbers among `values` as MLflow metrics "<stage>.<name>"; one that is named like a curve becomes "final_<name>", or it would be a point of it."""
    found = {name: float(value) for name, value in flat(values) if isinstance(value, int | float)}
    return {f"{stage}.final_{name}" if f"{stage}.{name}" in curves else f"{stage}.{name}": value for name, value in found.items()}


def text(value: Any) -> str:
    """A parameter's value as text: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
