"""SIGTERM as an exception, so that a stage unwinds, ends its run and exits non-zero; a second signal ends it at once."""

import signal
from types import FrameType
from typing import Any

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Terminated(BaseException):
    """SIGTERM came."""


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


def cause(error: BaseException | None) -> signal.Signals | None:
    """The signal behind an exception; None when there is none."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    return signal.SIGTERM if isinstance(error, Terminated) else None
