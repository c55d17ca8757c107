"""What a person sees while a stage runs: one live line on a terminal, a plain line now and then elsewhere, and tables."""

import math
import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Live

FIRST_LINE_SECONDS = 5.0  # plain lines: the first after so long, later ones further apart, up to
LAST_LINE_SECONDS = 60.0
REFRESH_SECONDS = 0.25  # the live line


class Screen(Protocol):
    """The real terminal behind a stage whose own output goes to a log."""

    file: TextIO

    def note(self, line: str) -> None:
        """Put a line into the log only."""

    def lift(self, live: "Live | None") -> None:
        """Have the log's text printed above this live line from now on; None: there is none."""


_screens: list[Screen] = []  # the innermost stage's comes last


def attach(screen: Screen) -> None:
    """Let progress lines go to `screen`."""
    _screens.append(screen)


def detach(screen: Screen) -> None:
    """Undo `attach`."""
    _screens.remove(screen)


class Progress:
    """How far a job is: `update(done, **figures)` as often as you like, it is shown a few times a second at most.

    `total` is in `unit`; None: not known. Figures take their unit from their name: loss, tokens_per_second, memory_bytes, eta_seconds.
    """

    def __init__(self, label: str, total: float | None, unit: str = "steps") -> None:
        self.label, self.total, self.unit = label, total, unit
        self._began = time.monotonic()
        self._next, self._done, self._figures, self._shown = 0.0, 0.0, dict[str, float | str](), -1.0
        self._screen = _screens[-1] if _screens else None
        file = self._screen.file if self._screen else sys.stdout
        self._live = _live_line(file, total) if file.isatty() else None
        self._next_line = self._began + FIRST_LINE_SECONDS
        if self._live:
            self._live.start()
            self._task = self._live.add_task(label, total=total, text="")
            if self._screen:
                self._screen.lift(self._live)

    def update(self, done: float, **figures: float | str) -> None:
        """`done` of `total` are behind us; `figures` are shown beside it."""
        self._done, self._figures = done, figures
        now = time.monotonic()
        if self._live and now >= self._next:
            self._next = now + REFRESH_SECONDS
            self._live.update(self._task, completed=done, text=self._text(now, with_label=False))
        if now >= self._next_line:
            self._line(now)

    def close(self) -> None:
        """Show the last state; closing twice is allowed."""
        now = time.monotonic()
        if self._shown != self._done:
            self._line(now)
        if self._live:
            self._live.update(self._task, completed=self._done, text=self._text(now, with_label=False))
            self._live.stop()
            self._live = None
            if self._screen:
                self._screen.lift(None)

    def _line(self, now: float) -> None:
        """One plain line: to the log alone where a live line already tells the person."""
        self._shown = self._done
        self._next_line = now + min(LAST_LINE_SECONDS, max(FIRST_LINE_SECONDS, (now - self._began) / 10))
        text = self._text(now, with_label=True)
        if self._live and self._screen:
            self._screen.note(text)
        elif not self._live:
            print(text, flush=True)

    def _text(self, now: float, *, with_label: bool) -> str:
        total = "" if self.total is None else f"/{number(self.total)}"
        left = self._left(now)
        time_shown = f"{duration(left)} left" if left is not None else duration(now - self._began)
        parts = [f"{number(self._done)}{total} {self.unit}", time_shown, *(figure(name, value) for name, value in self._figures.items())]
        return (f"{self.label}: " if with_label else "") + ", ".join(parts)

    def _left(self, now: float) -> float | None:
        """Seconds to go at the pace so far; None when nobody can know, or nothing is left."""
        if not self.total or not 0 < self._done < self.total:
            return None
        return (now - self._began) * (self.total - self._done) / self._done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _live_line(file: TextIO, total: float | None) -> "Live":
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Live
    from rich.table import Column

    console = Console(file=file)
    bar = BarColumn(bar_width=20 if console.width >= 100 else 8) if total is not None else SpinnerColumn()
    label = TextColumn("{task.description}", markup=False, table_column=Column(min_width=8, no_wrap=True))
    text = TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))  # its end is the first to go
    return Live(label, bar, text, console=console, refresh_per_second=1 / REFRESH_SECONDS, redirect_stdout=False, redirect_stderr=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: numbers short and to the right, text to the left."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    cells = [[number(cell) if isinstance(cell, int | float) else str(cell) for cell in row] for row in rows]
    grid = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="")
    for index, column in enumerate(columns):
        numeric = all(row[index][:1] in "-0123456789" for row in cells if row[index])
        grid.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        grid.add_row(*row)
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)
    console.print(grid)


def number(value: float) -> str:
    """A number for a person: 12345 -> 12,345; 3.14159 -> 3.142; 0.0002 -> 0.0002."""
    if isinstance(value, bool):
        return str(value).lower()
    if value == int(value) if abs(value) < 1e15 else False:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def size(value: float) -> str:
    """Bytes for a person: 1536 -> 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds for a person: 75 -> 1m 15s."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 60:
        return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h" if days else f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s"


def figure(name: str, value: float | str) -> str:
    """A named figure with the unit that its name carries: ("tokens_per_second", 4400) -> 4,400 tokens/s."""
    if isinstance(value, str):
        return f"{name.replace('_', ' ')} {value}"
    if name.endswith("_per_second"):
        return f"{number(round(value) if value >= 100 else value)} {name.removesuffix('_per_second').replace('_', ' ')}/s"
    if name.endswith("bytes"):
        return f"{name.removesuffix('bytes').replace('_', ' ')}{size(value)}"
    if name.endswith("seconds"):
        return f"{name.removesuffix('seconds').replace('_', ' ')}{duration(value)}"
    return f"{name.replace('_', ' ')} {number(value)}"
