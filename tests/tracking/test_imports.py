"""Import time is counted once, in the main thread, between start and stop."""

import builtins
import gc
import sys
import threading
from pathlib import Path

import pytest

from stages.tracking.imports import ImportClock


@pytest.fixture
def slow_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer_slow.py").write_text("import time, inner_slow\ntime.sleep(0.1)\n", "utf-8")
    (tmp_path / "inner_slow.py").write_text("import time\ntime.sleep(0.1)\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("outer_slow", "inner_slow"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("slow_modules")
def test_nested_imports_count_once() -> None:
    clock, before = ImportClock(), builtins.__import__
    clock.start()
    import outer_slow  # noqa: F401

    clock.stop()
    assert 0.2 <= clock.seconds < 0.35
    assert builtins.__import__ is before


@pytest.mark.usefixtures("slow_modules")
def test_other_threads_and_failures(tmp_path: Path) -> None:
    clock = ImportClock()
    clock.start()
    thread = threading.Thread(target=lambda: __import__("inner_slow"))
    thread.start()
    thread.join()
    with pytest.raises(ModuleNotFoundError):
        __import__("not_there_at_all")
    clock.stop()
    assert clock.seconds < 0.1
    assert "inner_slow" in sys.modules


@pytest.mark.usefixtures("slow_modules")
def test_the_collector_rests_while_importing_and_works_again_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asks.py").write_text("import gc\nenabled = gc.isenabled()\n", "utf-8")
    monkeypatch.delitem(sys.modules, "asks", raising=False)
    clock, frozen = ImportClock(), gc.get_freeze_count()
    clock.start()
    import asks

    clock.stop()
    assert asks.enabled is False
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    gc.unfreeze()
