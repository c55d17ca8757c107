"""Curves come back as they were written."""

import math
from pathlib import Path

import pytest

from stages.tracking.curves import Curve, read, rows


def test_rows_are_on_disk_at_once_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "plots" / "train.csv"
    with Curve(path, ("step", "loss", "variant")) as curve:
        curve.row(step=1, loss=3.5, variant="int8")
        assert path.read_text("utf-8") == "step,loss,variant\n1,3.5,int8\n"
        curve.row(step=2, variant="a,b")
    assert read(path) == {"step": [1.0, 2.0], "loss": [3.5, None], "variant": ["int8", "a,b"]}
    assert next(rows(path)) == {"step": 1.0, "loss": 3.5, "variant": "int8"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_is_no_number_becomes_an_empty_cell(tmp_path: Path, value: float | None) -> None:
    with Curve(tmp_path / "c.csv", ("step", "loss")) as curve:
        curve.row(step=1, loss=value)
    assert read(tmp_path / "c.csv") == {"step": [1.0], "loss": [None]}


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    with Curve(tmp_path / "c.csv", ("step", "loss")) as curve, pytest.raises(ValueError, match=r"no column los; it has step, loss"):
        curve.row(step=1, los=2.0)


@pytest.mark.parametrize(("text", "steps"), [("", {}), ("step,loss\n", {"step": [], "loss": []}), ("step,loss\n1,2\n3", {"step": [1.0], "loss": [2.0]})])
def test_empty_and_cut_files(tmp_path: Path, text: str, steps: dict[str, list[float]]) -> None:
    (tmp_path / "c.csv").write_text(text, "utf-8")
    assert read(tmp_path / "c.csv") == steps
