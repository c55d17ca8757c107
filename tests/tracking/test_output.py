"""All that a stage prints is in its log and on the screen, from Python and from below it."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

PRINTS = """
import ctypes, os, subprocess, sys, time
from pathlib import Path
from stages.tracking.console import Progress
from stages.tracking.output import Tee
tee = Tee(Path("out.log"))
print("from python")
print("from error", file=sys.stderr)
os.write(1, b"from the descriptor\\n")
ctypes.CDLL(None).puts(b"from C"); ctypes.CDLL(None).fflush(None)
subprocess.run(["echo", "from a child"])
with Progress("train", 3, "steps") as progress:
    for step in range(4):
        progress.update(step)
        print("step", step)
        time.sleep(0.3)
print("no newline at the end", end="")
{end}
tee.close()
print("afterwards")
"""
SAID = ["from python", "from error", "from the descriptor", "from C", "from a child", "step 0", "step 3", "no newline at the end"]


def script(folder: Path, end: str = "") -> list[str]:
    (folder / "prints.py").write_text(PRINTS.replace("{end}", end), "utf-8")
    return [sys.executable, "prints.py"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path.cwd()), "TERM": "xterm", "COLUMNS": "80"}


def test_into_a_pipe(tmp_path: Path) -> None:
    shown = subprocess.run(script(tmp_path), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True).stdout
    log = (tmp_path / "out.log").read_text("utf-8")
    for line in [*SAID, "train: 3/3 steps"]:
        assert log.count(line) == 1, line
        assert shown.count(line) == 1, line
    assert "afterwards" in shown
    assert "afterwards" not in log


def test_on_a_terminal_the_live_line_is_not_in_the_log_and_the_log_keeps_plain_ones(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(script(tmp_path), cwd=tmp_path, env=environment(), stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    assert process.wait() == 0
    log = (tmp_path / "out.log").read_text("utf-8")
    for line in SAID:
        assert log.count(line) == 1, line
        assert shown.count(line.encode()) == 1, line
    assert log.count("train: 3/3 steps") == 1
    assert b"train: 3/3 steps" not in shown  # there it is the live line
    assert b"3/3 steps" in shown
    assert "\x1b" not in log


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os.abort()"])
def test_the_log_is_complete_after_a_violent_death(tmp_path: Path, end: str) -> None:
    process = subprocess.run(script(tmp_path, f"sys.stdout.flush(); {end}"), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert process.returncode < 0
    log = (tmp_path / "out.log").read_text("utf-8")
    assert all(line in log for line in SAID)


def test_a_full_disk_ends_the_log_and_not_the_stage(tmp_path: Path) -> None:
    command = script(tmp_path)
    text = (tmp_path / "prints.py").read_text("utf-8")
    (tmp_path / "prints.py").write_text(f"import stages.tracking.output as output\noutput.LEAST_FREE_BYTES = 1 << 80\n{text}", "utf-8")
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.count("the disk is full") == 1
    assert all(line in done.stdout for line in ("step 3", "no newline at the end", "afterwards"))
    assert "step 3" not in (tmp_path / "out.log").read_text("utf-8")


def test_a_reader_that_goes_away_does_not_end_the_stage(tmp_path: Path) -> None:
    process = subprocess.Popen(script(tmp_path), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    time.sleep(0.5)
    process.stdout.close()
    process.wait(timeout=30)
    assert "no newline at the end" in (tmp_path / "out.log").read_text("utf-8")
