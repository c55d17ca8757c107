"""Plain lines where nobody watches, one live line on a terminal, and words for numbers."""

import io
import sys
from typing import Any

import pytest

from stages.tracking import console
from stages.tracking.console import Progress


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12345, "12,345"), (3.14159, "3.142"), (0.0002, "0.0002"), (1234.5, "1,234"), (float("nan"), "nan"), (float("inf"), "inf"), (True, "true")],
)
def test_numbers(value: float, text: str) -> None:
    assert console.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 42, "12.0 TiB")])
def test_sizes(value: float, text: str) -> None:
    assert console.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.04, "0.0s"), (9.5, "9.5s"), (59, "59s"), (59.9, "60s"), (75, "1m 15s"), (3661, "1h 01m"), (200_000, "2d 7h"), (float("inf"), "?")]
)
def test_durations(value: float, text: str) -> None:
    assert console.duration(value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("loss", 3.21987, "loss 3.22"),
        ("tokens_per_second", 4400.4, "4,400 tokens/s"),
        ("memory_bytes", 3 << 20, "memory 3.0 MiB"),
        ("validation_seconds", 61, "validation 1m 01s"),
        ("split", "test", "split test"),
    ],
)
def test_figures_take_their_unit_from_their_name(name: str, value: float | str, text: str) -> None:
    assert console.figure(name, value) == text


def test_plain_lines_come_now_and_then_and_at_the_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with Progress("train", 1000, "tokens") as progress:
        for done in range(1, 1001):
            now = done / 10
            progress.update(done, loss=1 / done)
    lines = capsys.readouterr().out.splitlines()
    assert 10 <= len(lines) <= 20
    assert lines[0] == "train: 50/1,000 tokens, 1m 35s left, loss 0.02"
    assert lines[-1] == "train: 1,000/1,000 tokens, 1m 40s, loss 0.001"


def test_without_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("read", None, "documents")
    progress.update(7)
    progress.close()
    progress.close()
    assert capsys.readouterr().out == "read: 7 documents, 0.0s\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    with Progress("train", 10, "steps") as progress:
        for done in range(11):
            progress.update(done, loss=0.5)
    shown = terminal.getvalue()
    assert "\x1b[" in shown
    assert "10/10 steps" in shown
    assert "loss 0.5" in shown
    assert "train" in shown


@pytest.mark.parametrize("cell", ["text", 3, 0.5, None])
def test_a_table_shows_every_cell(capsys: pytest.CaptureFixture[str], cell: Any) -> None:
    console.table("Title", ("name", "value"), [("a", cell), ("[b]", 12345)])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("Title", "name", "[b]", "12,345", "" if cell is None else str(cell)))
