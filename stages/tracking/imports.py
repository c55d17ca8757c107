"""How long a stage's imports take: they are most of what is not its own work, and happen late, wherever a function needs them.

No garbage is looked for meanwhile, and what they have made is never looked through again: modules stay to the end, half a million objects of them.
Together that takes a quarter off the imports (CHANGELOG).
"""

import builtins
import gc
import threading
import time
from typing import Any


class ImportClock:
    """Counts the main thread's seconds in import statements between `start` and `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._thread, self._within = threading.get_ident(), False

    def start(self) -> None:
        """Begin to count."""
        self._import = builtins.__import__
        builtins.__import__ = self._timed

    def stop(self) -> None:
        """Count no more; somebody who has wrapped imports after us keeps their wrapper."""
        if builtins.__import__ == self._timed:
            builtins.__import__ = self._import

    def _timed(self, *arguments: Any, **options: Any) -> Any:
        if self._within or threading.get_ident() != self._thread:
            return self._import(*arguments, **options)
        began, self._within, collecting = time.perf_counter(), True, gc.isenabled()
        gc.disable()
        try:
            return self._import(*arguments, **options)
        finally:
            self._within = False
            if collecting:
                gc.freeze()
                gc.enable()
            self.seconds += time.perf_counter() - began
