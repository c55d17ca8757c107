"""The key: the same for the same content, another for anything that can change a result; and edits while a stage runs are seen."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.tracking import pipeline
from stages.tracking.pipeline import Contents, Snapshot, key, stages

DVC = """
stages:
  tokenize:
    cmd: python -m stages.tokenize
    deps: [inputs/text, {stages/data/: }, lock.txt]
    params: [data]
    outs: [data/tokens]
    metrics: [reports/tokenize.json: {cache: false}]
  train:
    cmd: python -m stages.train
    deps: [data/tokens, stages/train.py]
    params: [train.rate, seed, params.yaml: [model]]
    outs: [{models/model: {persist: true}}]
    plots: [plots/train.csv]
  report:
    cmd: python -m stages.report
    deps: [reports/tokenize.json, data/tokens/meta.json]
"""
PARAMS = {"seed": 1, "train": {"rate": 0.1}}


def build(folder: Path) -> Path:
    files = {"dvc.yaml": DVC, "params.yaml": "seed: 1\ntrain: {rate: 1e-1, other: 1}\nmodel: {size: 1}\n", "lock.txt": "a", "stages/train.py": "t"}
    files |= {"inputs/text/a.txt": "text", "stages/data/x.py": "x", "data/tokens/meta.json": "{}", ".dvcignore": "__pycache__/\n*.swp\n# a comment\n"}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return build(tmp_path / "one")


def key_of(folder: Path, params: dict[str, object] | None = None) -> str:
    return key(params or PARAMS, Contents(folder), stages(folder))


def test_what_no_stage_makes(project: Path) -> None:
    assert pipeline.free_dependencies(stages(project)) == ["inputs/text", "lock.txt", "stages/data", "stages/train.py"]
    assert stages(project)["train"].params == ("train.rate", "seed", "model")


def test_two_clones_have_one_key(project: Path, tmp_path: Path) -> None:
    other = build(tmp_path / "two")
    os.utime(other / "lock.txt", (1, 1))
    assert key_of(project) == key_of(other)


def test_the_order_of_parameters_is_no_matter(project: Path) -> None:
    assert key_of(project) == key_of(project, {"train": {"rate": 0.1}, "seed": 1})


def edit(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")

    return change


CHANGES = {
    "a file": edit("lock.txt", "b"),
    "a file in a folder": edit("inputs/text/a.txt", "texts"),
    "a new file": edit("stages/data/y.py", ""),
    "a renamed file": lambda folder: (folder / "inputs/text/a.txt").rename(folder / "inputs/text/b.txt"),
    "a missing file": lambda folder: (folder / "stages/train.py").unlink(),
    "a missing folder": lambda folder: (folder / "stages/data").rename(folder / "stages/elsewhere"),
}
OTHERS = {
    "what a stage makes": edit("data/tokens/train.bin", "1"),
    "a report": edit("reports/tokenize.json", "{}"),
    "byte code": edit("stages/data/__pycache__/x.pyc", "1"),
    "what .dvcignore names": edit("stages/data/.x.py.swp", "1"),
    "a file that nothing depends on": edit("README.md", "1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_key_after_a_change_of(project: Path, name: str) -> None:
    before = key_of(project)
    CHANGES[name](project)
    assert key_of(project) != before


@pytest.mark.parametrize("name", OTHERS)
def test_the_same_key_after_a_change_of(project: Path, name: str) -> None:
    before = key_of(project)
    OTHERS[name](project)
    assert key_of(project) == before


def test_another_key_for_other_parameters(project: Path) -> None:
    assert len({key_of(project, {"seed": value}) for value in (1, 2, "1", None, 1.5)}) == 5


def test_linked_folders_count_and_circles_end(project: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "b.txt").write_text("1", "utf-8")
    (project / "inputs/text/far").symlink_to(tmp_path / "far")
    (project / "inputs/text/loop").symlink_to(project / "inputs/text")
    before = key_of(project)
    (tmp_path / "far" / "b.txt").write_text("2", "utf-8")
    assert key_of(project) != before


def test_a_file_changed_under_equal_size_and_time_is_read_again(project: Path) -> None:
    contents, path = Contents(project), project / "lock.txt"
    before, status = contents.files("lock.txt"), path.stat()
    path.write_text("b", "utf-8")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert contents.files("lock.txt") != before


def test_hashes_of_large_files_are_remembered_once_they_have_settled(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "LARGE_BYTES", 4)
    memory = tmp_path / "hashes.json"
    first = Contents(project, memory)
    found = first.files("inputs/text")
    first.remember()
    assert not memory.exists()  # just written: another write in the same instant would leave no trace
    monkeypatch.setattr(pipeline, "SETTLED_SECONDS", -5)
    first.remember()
    monkeypatch.setattr(pipeline, "file_hash", lambda path: "read again")
    assert Contents(project, memory).files("inputs/text") == found
    (project / "inputs/text/a.txt").write_text("other", "utf-8")
    assert Contents(project, memory).files("inputs/text") == {"inputs/text/a.txt": "read again"}


def snapshot(project: Path) -> Snapshot:
    return Snapshot.take(stages(project)["train"], Contents(project))


def test_nothing_changed(project: Path) -> None:
    taken = snapshot(project)
    edit("params.yaml", "seed: 1  # a comment\ntrain: {rate: 0.1, other: 2}\nmodel: {size: 1}\n")(project)
    edit("inputs/text/a.txt", "not this stage's")(project)
    os.utime(project / "stages/train.py", (1, 1))
    assert taken.changes() == []


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("params.yaml", "seed: 1\ntrain: {rate: 0.2}\nmodel: {size: 1}\n", "params.yaml: train.rate 0.1 -> 0.2"),
        ("params.yaml", "seed: 1\nmodel: {size: 1}\n", "params.yaml: train.rate 0.1 -> None"),
        ("params.yaml", "seed: 1\ntrain: {rate: 0.1}\nmodel: {size: 2}\n", "params.yaml: model.size 1 -> 2"),
        ("stages/train.py", "u", "stages/train.py: changed"),
        ("data/tokens/new.bin", "u", "data/tokens/new.bin: added"),
        ("data/tokens/meta.json", None, "data/tokens/meta.json: removed"),
    ],
)
def test_what_changed_is_named(project: Path, name: str, text: str | None, line: str) -> None:
    taken = snapshot(project)
    if text is None:
        (project / name).unlink()
    else:
        edit(name, text)(project)
    assert taken.changes() == [line]


def test_an_edit_that_is_undone_is_none(project: Path) -> None:
    taken = snapshot(project)
    edit("stages/train.py", "u")(project)
    assert taken.changes()
    edit("stages/train.py", "t")(project)
    assert taken.changes() == []


def test_the_projects_own_pipeline_can_be_read() -> None:
    own = stages(Path(__file__).parents[2])
    assert len(own) == 6
    assert {"inputs/text", "inputs/tokenizer", "inputs/weights", "requirements.txt", "stages/data", "stages/report.py"} <= set(pipeline.free_dependencies(own))
