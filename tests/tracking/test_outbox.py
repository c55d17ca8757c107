"""What a stage writes is there for whoever reads, whole lines only, whatever happens to either."""

import math
import resource
import signal
from pathlib import Path

import pytest

from stages.tracking import processes
from stages.tracking.outbox import Outbox, home, replace_text, take, waiting

OPENING = dict.fromkeys(("key", "stage", "name", "process", "dvc", "workspace", "experiment"), "x")
OPENING |= {"closing": False, "params": {}, "tags": {}, "secrets": []}


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox.create(tmp_path, "train")


def test_events_come_back_in_order_from_any_offset(outbox: Outbox) -> None:
    writer = outbox.writer()
    assert outbox.read(0) == ([], 0)
    assert outbox.opening() is None
    writer.write("open", **OPENING, text="ä\n")
    writer.write("point", step=1, values={"a": 1.0, "b": 2.0})
    events, offset = outbox.read(0)
    assert [event["event"] for event in events] == ["open", "point"]
    assert outbox.read(offset) == ([], offset)
    writer.write("point", step=2, values={"a": 0.5})
    assert outbox.read(offset)[0] == [{"event": "point", "step": 2, "values": {"a": 0.5}}]
    assert outbox.opening() == {"event": "open", **OPENING, "text": "ä\n"}
    assert outbox.points() == 3


def test_only_whole_lines_are_read_and_damaged_ones_are_left_out(outbox: Outbox) -> None:
    path = outbox.folder / "events.jsonl"
    path.write_bytes(b'{"event": "open"}\nrubbish\n[1]\n{"event": "poi')
    events, offset = outbox.read(0)
    assert events == [{"event": "open"}]
    with path.open("ab") as file:
        file.write(b'nt"}\n')
    assert outbox.read(offset)[0] == [{"event": "point"}]


@pytest.mark.parametrize("name", OPENING)
def test_a_damaged_opening_is_none(outbox: Outbox, name: str) -> None:
    outbox.writer().write("open", **{**OPENING, name: 7})
    assert outbox.opening() is None


def test_large_boxes_are_read_in_parts(outbox: Outbox) -> None:
    writer = outbox.writer()
    for step in range(100):
        writer.write("point", step=step, values={"a": 1.0})
    offset, steps = 0, []
    while True:
        events, offset = outbox.read(offset, limit=300)
        if not events:
            break
        steps += [event["step"] for event in events]
    assert steps == list(range(100))


@pytest.mark.parametrize("last", ["point", "end"])
def test_whether_the_end_was_written(outbox: Outbox, last: str) -> None:
    writer = outbox.writer()
    writer.write("open")
    writer.write("note", text='"event": "end"')
    writer.write(last)
    assert outbox.ending(0) is (last == "end")


def test_a_full_disk_loses_the_event_and_nothing_else(outbox: Outbox) -> None:
    writer = outbox.writer()
    writer.write("open")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
        assert not writer.write("point", text="x" * 100)
        assert not writer.write("point", text="y" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert writer.write("end")
    assert [event["event"] for event in outbox.read(0)[0]] == ["open", "end"]
    assert writer.lost == 2


def test_numbers_that_json_does_not_know_are_refused(outbox: Outbox) -> None:
    with pytest.raises(ValueError, match="JSON"):
        outbox.writer().write("point", value=math.nan)


def test_boxes_wait_in_the_order_of_their_making(tmp_path: Path) -> None:
    made = [Outbox.create(tmp_path, stage).folder for stage in ("b", "a", "c")]
    assert [outbox.folder for outbox in waiting(tmp_path)] == made
    assert Outbox(made[0]).owner() == processes.identity()
    moved = Outbox(made[0]).set_aside()
    assert moved.is_dir()
    assert [outbox.folder for outbox in waiting(tmp_path)] == made[1:]


def test_one_at_a_time_delivers(outbox: Outbox) -> None:
    first, second = outbox.lock(), outbox.lock()
    assert take(first)
    assert not take(second)
    outbox.unlock(first)
    assert take(second)
    outbox.remove()
    outbox.unlock(second)
    assert list(outbox.folder.parent.iterdir()) == []


def test_a_small_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    replace_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "\ud800")
    assert path.read_text("utf-8") == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["state.json"]


def test_the_home_is_that_of_the_parent_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "project" / "deep"
    inside.mkdir(parents=True)
    (tmp_path / "project" / ".dvc").mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert home() == tmp_path / "project" / ".underbudget"
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert home() == tmp_path / ".underbudget"


def test_nobody_finds_it_before_its_owner_stands_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder that did would take it for the remains of a dead stage and clear it away."""
    identity, found = processes.identity(), []
    monkeypatch.setattr(processes, "identity", lambda: found.append([place.folder for place in waiting(tmp_path)]) or identity)
    outbox = Outbox.create(tmp_path, "train")
    assert found == [[]]
    assert [(place.folder, place.owner()) for place in waiting(tmp_path)] == [(outbox.folder, identity)]
