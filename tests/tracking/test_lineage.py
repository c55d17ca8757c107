"""Where a result came from, in a real git repository and without one."""

import subprocess
from pathlib import Path

import pytest

from stages.tracking import lineage


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_EXP_NAME", "DVC_EXP_BASELINE_REV"):
        monkeypatch.delenv(name, raising=False)
    for words in (["init", "-q", "-b", "main"], ["config", "user.name", "t"], ["config", "user.email", "t@example.invalid"]):
        subprocess.run(["git", *words], check=True)
    (tmp_path / "code.py").write_text("ä = 1\n", "utf-8")
    (tmp_path / "requirements.txt").write_text("dvc==1\n", "utf-8")
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(["git", "commit", "-q", "-m", "m"], check=True)
    return tmp_path


def test_a_clean_commit(repository: Path) -> None:
    (repository / "reports").mkdir()
    (repository / "reports" / "train.json").write_text("{}", "utf-8")  # results do not make the code dirty
    sha, diff = lineage.commit(), lineage.uncommitted()
    assert len(sha) == 40
    assert diff == ""
    tags = lineage.tags(sha, diff)
    assert {"commit": sha, "dirty": "false"}.items() <= tags.items()
    assert len(tags["hash.lock"]) == 16
    assert tags["version.dvc"]
    assert "dvc_experiment" not in tags


def test_uncommitted_changes(repository: Path) -> None:
    (repository / "code.py").write_text("ä = 2\n", "utf-8")
    (repository / "nëw.py").write_text("", "utf-8")
    diff = lineage.uncommitted()
    assert "-ä = 1\n+ä = 2\n" in diff
    assert "untracked: nëw.py\n" in diff
    assert lineage.tags(lineage.commit(), diff)["dirty"] == "true"


def test_of_inputs_only_the_names_are_kept(repository: Path) -> None:
    text = repository / "inputs" / "text" / "mine.txt"
    text.parent.mkdir(parents=True)
    text.write_text("private words\n", "utf-8")
    subprocess.run(["git", "add", "--intent-to-add", "."], check=True)  # as DVC leaves it behind
    (repository / "code.py").write_text("ä = 2\n", "utf-8")
    diff = lineage.uncommitted()
    assert "private words" not in diff
    assert "inputs/text/mine.txt\n" in diff
    assert "+ä = 2\n" in diff


def test_a_huge_difference_is_cut_visibly(repository: Path) -> None:
    (repository / "code.py").write_text("x" * (lineage.MAX_DIFF_BYTES + 1000) + "\n", "utf-8")
    diff = lineage.uncommitted()
    assert len(diff) < lineage.MAX_DIFF_BYTES + 200
    assert "... cut here: the difference has" in diff


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (lineage.commit(), lineage.uncommitted()) == ("", "")
    assert lineage.tags("", "")["commit"] == "none"
    monkeypatch.setenv("PATH", "")
    assert (lineage.commit(), lineage.uncommitted()) == ("", "")
    assert "gpu none" in lineage.environment()


def test_data_as_the_lock_has_it(repository: Path) -> None:
    assert lineage.hashes() == {}
    assert lineage.dataset({}, "") is None
    outs = (
        "    outs:\n    - path: data/tokens\n      hash: md5\n      md5: 0123456789abcdef0123456789abcdef.dir\n    - path: data/tokenizer\n      md5: ff.dir\n"
    )
    stale = "    deps:\n    - path: data/tokens\n      md5: old.dir\n"
    lock = f"schema: '2.0'\nstages:\n  train:\n    cmd: x\n{stale}  tokenize:\n    cmd: y\n{outs}  report:\n    cmd: z\n{stale}"
    (repository / "dvc.lock").write_text(lock, "utf-8")
    (repository / "data/tokens").mkdir(parents=True)
    (repository / "data/tokens/meta.json").write_text('{"splits": {"train": {"tokens": 3}}}', "utf-8")
    assert lineage.hashes() == {"hash.data": "0123456789abcdef0123456789abcdef.dir", "hash.tokenizer": "ff.dir"}
    found = lineage.dataset({"data": {"source": "sotu"}}, lineage.hashes()["hash.data"])
    assert found == {"name": "sotu", "digest": "0123456789abcdef0123456789abcdef.dir", "source": "sotu", "profile": '{"train": {"tokens": 3}}'}


def test_the_environment_names_machine_and_packages() -> None:
    text = lineage.environment()
    for words in ("python 3", "platform ", "logical cores", "gpu ", "\ndvc==", "\nmlflow=="):
        assert words in text, words
    assert lineage.threads() >= 1
