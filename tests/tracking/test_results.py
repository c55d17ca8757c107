"""Reports are valid JSON, and what was not finite has a name."""

import json
import math
from pathlib import Path

import pytest

from stages.tracking import results


def test_non_finite_numbers_become_null_and_are_named() -> None:
    values, bad = results.finite({"a": math.nan, "b": {"c": [1.0, math.inf]}, "d": (True, None, "x", 7), "e": Path("a/b")})
    assert values == {"a": None, "b": {"c": [1.0, None]}, "d": [True, None, "x", 7], "e": "a/b"}
    assert {name: str(value) for name, value in bad.items()} == {"a": "nan", "b.c.1": "inf"}


def test_a_report_is_valid_json_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results.write("train", {"loss": 1.5, "text": "ä\n"})
    assert json.loads(Path("reports/train.json").read_text("utf-8")) == {"loss": 1.5, "text": "ä\n"} == results.read("train")
    assert [path.name for path in Path("reports").iterdir()] == ["train.json"]


@pytest.mark.parametrize(
    ("text", "message"), [(None, "is missing; run `dvc repro train`"), ("{", "is not valid JSON"), ("[1]", "must hold an object, not list")]
)
def test_an_unreadable_report_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("reports").mkdir()
        Path("reports/train.json").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=rf"reports/train\.json {message}"):
        results.read("train")


def test_metrics_are_the_numbers_and_never_a_point_of_a_curve() -> None:
    values = {"loss": 2.0, "steps": 3, "passed": True, "best": "int8", "none": None, "seconds": {"total": 1.5}}
    assert results.metrics("train", values, {"train.loss"}) == {"train.final_loss": 2.0, "train.steps": 3.0, "train.passed": 1.0, "train.seconds.total": 1.5}


@pytest.mark.parametrize(("value", "text"), [("a b", "a b"), (None, "null"), (True, "true"), (1e-5, "1e-05"), ([1, "ä"], '[1, "ä"]')])
def test_parameters_as_text(value: object, text: str) -> None:
    assert results.text(value) == text
