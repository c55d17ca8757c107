"""How a stage ends: SIGTERM as an exception, so that it unwinds; the run's status, the exit code, and what the person is told."""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Terminated(BaseException):
    """SIGTERM came."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """MLflow's status, the exit code, and why it is not 0."""

    status: str
    code: int = 0
    reason: str = ""


FINISHED = Verdict("FINISHED")


def catch() -> dict[int, Any]:
    """Raise Terminated on SIGTERM from now on; returns what `release` needs. Only the main thread can; others get nothing."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    try:
        return {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    except ValueError:
        return {}


def hurry() -> dict[int, Any]:
    """From now on a signal ends the process at once; returns what `release` needs."""
    try:
        return {number: signal.signal(number, signal.SIG_DFL) for number in EXIT_CODES}
    except ValueError:
        return {}


def release(handlers: dict[int, Any]) -> None:
    """Give the handlers back that were there before."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def judge(stage: str, error: BaseException | None, note: Callable[[str], None]) -> Verdict:
    """What a stage's last exception means; says so on standard error.

    A ValueError is the user's to mend: its message is enough for them, its traceback goes to `note`.
    """
    number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM if isinstance(error, Terminated) else None
    if number is not None:
        tell(f"{stage}: stopped by {number.name}; the same command again begins it anew, and keeps the stages before it")
        return Verdict("KILLED", EXIT_CODES[number], number.name)
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return FINISHED
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return Verdict("FAILED", error.code, f"exit code {error.code}")
        tell(f"{stage}: {error.code}")
        return Verdict("FAILED", 1, str(error.code))
    if isinstance(error, ValueError):
        note("".join(traceback.format_exception(error)))
        tell(f"{stage}: {error}")
    else:
        traceback.print_exception(error)
    return Verdict("FAILED", 1, f"{type(error).__name__}: {error}")


def refuse(stage: str, changes: Sequence[str]) -> Verdict:
    """Of a stage whose dependencies changed while it ran: DVC hashes them after the command, and would record the new ones for the old result."""
    tell(f"{stage}: these changed while it ran, so its result is refused; run it again:", changes)
    return Verdict("FAILED", 1, "changed while it ran: " + "; ".join(changes))


def tell(head: str, lines: Sequence[str] = ()) -> None:
    """To the person, with `lines` below, each indented."""
    print("\n  ".join([head, *lines]), file=sys.stderr)
