"""Curves as CSV files: written row by row while a stage runs, read back by figures and by DVC's plots."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

Cell = float | int | str
AXES = ("step", "tokens")  # columns that place a point, and are no curve of their own


class Curve:
    """A CSV file with the given columns; every row is on disk when `row` returns. A non-finite number becomes an empty cell."""

    def __init__(self, path: Path | str, columns: Sequence[str]) -> None:
        self.path, self.columns = Path(path), tuple(columns)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._write(self.columns)

    def row(self, **values: Cell | None) -> None:
        """Append one row; a column left out or None stays empty. Raises ValueError for a column that the curve does not have."""
        unknown = values.keys() - set(self.columns)
        if unknown:
            raise ValueError(f"{self.path} has no column {', '.join(sorted(unknown))}; it has {', '.join(self.columns)}")
        self._write([_cell(values.get(column)) for column in self.columns])

    def _write(self, cells: Sequence[Cell]) -> None:
        self._writer.writerow(cells)
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _cell(value: Cell | None) -> Cell:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def rows(path: Path | str) -> Iterator[dict[str, float | str | None]]:
    """The rows of a curve, one at a time: a number where the cell is one, None where it is empty. A half last line is left out."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if None in row or None in row.values():
                continue
            yield {column: _value(cell) for column, cell in row.items()}


def read(path: Path | str) -> dict[str, list[float | str | None]]:
    """The whole curve by column; columns without rows are there, empty."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        columns: dict[str, list[float | str | None]] = {name: [] for name in next(csv.reader(file), [])}
    for row in rows(path):
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _value(cell: str) -> float | str | None:
    if not cell:
        return None
    try:
        number = float(cell)
    except ValueError:
        return cell
    return number if math.isfinite(number) else None
