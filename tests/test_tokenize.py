"""The stage `tokenize`, run as DVC runs it: files, report, notes, and a user's fault in one message without a traceback."""

import json
import sys

import pytest

from stages import params
from stages.data.prepare import prepare
from stages.tokenize import notes, report
from tests.data.made import data, put, tokenizer

STORIES = [f"Story {i} of the union and of its people, told in peace.\n" for i in range(60)]


@pytest.fixture
def settings():
    """The default parameters with one's own text in them."""
    return params.load().model_copy(update={"data": data(), "tokenizer": tokenizer(vocab_size=2000)})


@pytest.fixture
def workplace(tmp_path, monkeypatch, settings):
    monkeypatch.chdir(tmp_path)


def made(settings):
    return prepare(settings.data, settings.tokenizer)


def test_the_report_counts_what_the_files_hold(settings, workplace):
    put("own.txt", "".join(STORIES))
    put("b.jsonl", "".join(json.dumps({"text": one}) + "\n" for one in ["", "alone"]))
    put("README.md", "")
    figures = report(made(settings.model_copy(update={"data": data(document="line")})))
    splits = [figures[name] for name in ("train", "validation", "test")]
    assert sum(split["documents"] for split in splits) == 61
    assert sum(split["bytes"] for split in splits) == len("".join(STORIES)) + 5
    assert all(split["bytes_per_token"] == split["bytes"] / split["tokens"] for split in splits)
    assert (figures["empty_documents"], figures["ignored_files"], figures["tokenizer_sampled_every"]) == (1, 1, 1)
    assert set(figures["seconds"]) == {"read", "tokenizer", "encode"}
    json.dumps(figures, allow_nan=False)


def test_notes_tell_what_was_left_out_and_what_flatters(settings, workplace):
    for name in ("a.txt", "dev.txt", "test.txt"):
        put(name, "".join(STORIES[:3] if name == "dev.txt" else STORIES))
    put("b.jsonl", '{"text": ""}\n')
    put("notes.md", "")
    settings = settings.model_copy(update={"data": data(document="line", validation=["dev.txt"], test=["test.txt"])})
    lines = "\n".join(notes(made(settings), settings))
    assert "1 files without text were left alone: notes.md" in lines
    assert "1 documents without any text were left out" in lines
    assert "3 documents of validation stand word for word in train too" in lines
    assert "60 documents of test stand word for word in train too" in lines
    assert "3 documents of test stand word for word in validation too" in lines
    assert "not tokenizer.vocab_size 2000" in lines
    assert len(lines.splitlines()) == 6


def test_nothing_is_noted_where_nothing_is_odd(settings, workplace):
    put("a.txt", "".join(STORIES))
    settings = settings.model_copy(update={"data": data(document="line"), "tokenizer": tokenizer("gpt2")})
    assert notes(made(settings), settings) == []


def test_the_stage_writes_its_report_and_a_fault_is_one_message(make_project):
    project = make_project()
    done = project.run(sys.executable, "-m", "stages.tokenize")
    figures = json.loads((project.folder / "reports" / "tokenize.json").read_text())
    assert sum(figures[split]["documents"] for split in ("train", "validation", "test")) == 25
    assert figures["vocab_size"] == 600
    assert figures["seconds"]["total"] > 0
    assert "train" in done.stdout and "encoding" in done.stdout
    assert sorted(path.name for path in (project.folder / "data" / "tokens").iterdir()) == ["meta.json", "test.bin", "test.txt", "train.bin", "validation.bin"]
    project.set({"data": {"source": "inputs/text/missing"}})
    failed = project.run(sys.executable, "-m", "stages.tokenize", check=False)
    assert failed.returncode != 0
    assert "data.source inputs/text/missing does not exist; put your text there" in failed.stdout
    assert "Traceback" not in failed.stdout
