"""Documents out of files: concatenated txt documents are the file, records are whole, and faults name file, line and field."""

import csv
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.data import readers, text
from tests.data.made import data

POEM = "The fog comes\non little cat feet.\n\nIt sits looking\r\nover harbor and city\n\n\n   \non silent haunches\n\n"


def documents(path, **changes):
    return list(readers.documents(path, data(**changes)))


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["poem.txt", "poem.txt.gz", "POEM.TXT"])
@pytest.mark.parametrize(("document", "count"), [("file", 1), ("paragraph", 3), ("line", 5)])
def test_txt_documents_put_together_are_the_file(name, document, count, tmp_path):
    found = documents(write(tmp_path / name, POEM), document=document)
    assert b"".join(found) == POEM.encode()
    assert len(found) == count


def test_what_separates_documents_belongs_to_the_one_before(tmp_path):
    path = write(tmp_path / "a.txt", "\n \none\n\ntwo\nthree\n\n \n\nfour")
    assert documents(path, document="paragraph") == [b"\n \none\n\n", b"two\nthree\n\n \n\n", b"four"]
    assert documents(path, document="line") == [b"\n \none\n\n", b"two\n", b"three\n\n \n\n", b"four"]


@given(st.text(alphabet="a \n\r\t\u00e9", max_size=60))
def test_any_text_comes_back_whole(tmp_path_factory, content):
    path = write(tmp_path_factory.mktemp("any") / "a.txt", content)
    for document in ("file", "paragraph", "line"):
        found = documents(path, document=document)
        assert b"".join(found) == content.encode()
        assert all(found)
        assert document == "file" or len(found) == 1 or not any(one.isspace() for one in found)


def test_carriage_returns_are_kept(tmp_path):
    path = write(tmp_path / "a.txt", b"a\r\n\r\nb\rc\r\n")
    assert documents(path, document="paragraph") == [b"a\r\n\r\n", b"b\rc\r\n"]


def as_csv(texts):
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerows([["id", "text"], *enumerate(texts)])
    return out.getvalue()


TEXTS = ["plain", 'with, comma and "quotes"', "two\nlines\r\nkept", "  blanks  ", "é 😀 \u2028", "<|endoftext|>"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.csv.gz", "a.parquet"])
def test_records_of_every_format_are_whole(name, end, tmp_path):
    path = tmp_path / name
    if ".csv" in name:
        write(path, as_csv(TEXTS))
    elif ".jsonl" in name:
        write(path, end.join(json.dumps({"id": 1, "text": one}) for one in TEXTS) + end)
    else:
        pq.write_table(pa.table({"id": range(len(TEXTS)), "text": TEXTS}), path)
    assert documents(path) == [one.encode() for one in TEXTS]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_a_byte_order_mark_changes_nothing(name, tmp_path):
    content = {"a.txt": "hello\n", "a.jsonl": '{"text": "hello"}\n', "a.csv": "text,id\nhello,1\n"}[name]
    plain, marked = write(tmp_path / name, content), write(tmp_path / f"marked-{name}", "\ufeff" + content)
    assert documents(plain) == documents(marked) != []


@pytest.mark.parametrize("content", ['{"text": "a"}\n\n  \n{"text": ""}\n{"text": "b"}\n\n', '\n{"text": "a"}\n{"text": null}\n{"text": "b"}'])
def test_jsonl_skips_empty_lines_and_marks_records_without_text(content, tmp_path):
    assert documents(write(tmp_path / "a.jsonl", content)) == [b"a", b"", b"b"]


def test_csv_skips_empty_rows(tmp_path):
    assert documents(write(tmp_path / "a.csv", 'id,text\n\n1,a\n\n2,""\n3," "\n')) == [b"a", b"", b" "]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a"}\n\n{"text": \n', r"a\.jsonl:3: no JSON \("),
        ("a.jsonl", '["a"]\n', r"a\.jsonl:1: a JSON object is needed on each line, this is list"),
        ("a.jsonl", '"a"\n', r"a\.jsonl:1: .*this is str"),
        ("a.jsonl", '{"text": "a"}\n{"body": "b", "id": 2}\n', r"a\.jsonl:2: no field 'text'; there are 'body', 'id': set data\.text_field to one of them"),
        ("a.jsonl", '{"text": 5}\n', r"a\.jsonl:1: the field 'text' is int, not text"),
        ("a.jsonl", '{"text": ["a"]}\n', r"a\.jsonl:1: the field 'text' is list, not text"),
        ("a.jsonl", '{"text": "half \\ud800"}\n', r"a\.jsonl:1: half a surrogate pair at character 5.*data\.encoding_errors=replace"),
        ("a.jsonl", "[" * 100_000, r"a\.jsonl:1: no JSON"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b\xff"}\n'.encode("latin-1"), r"a\.jsonl: byte 0xff at offset 25 is not utf-8"),
        ("a.csv", "id,body\n1,a\n", r"a\.csv:1: no field 'text'; there are 'id', 'body'"),
        ("a.csv", "id,text\n1,a\n2,b, c\n", r"a\.csv:3: 3 fields, but the header has 2; put quotes around"),
        ("a.csv", "id,text\n1\n", r"a\.csv:2: 1 fields, but the header has 2"),
        ("a.csv", 'id,text\n1,"never closed\n2,b\n', r"a\.csv:3: not readable as csv"),
        ("a.parquet", b"PAR1 not really", r"a\.parquet is not readable as parquet"),
    ],
)
def test_faults_name_file_line_and_field(name, content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        documents(write(tmp_path / name, content))


def test_half_a_surrogate_pair_is_replaced_when_asked(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "half \\ud800, whole \\ud83d\\ude00"}\n')
    assert documents(path, encoding_errors="replace") == ["half \ufffd, whole 😀".encode()]


def test_another_field_and_parquet_faults(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["a", None, "b"], "number": [1, 2, 3]}), path)
    assert documents(path, text_field="body") == [b"a", b"", b"b"]
    with pytest.raises(ValueError, match=r"a\.parquet: no field 'text'; there are 'body', 'number'"):
        documents(path)
    with pytest.raises(ValueError, match=r"a\.parquet: row 0: the field 'number' is int, not text"):
        documents(path, text_field="number")


def test_parquet_comes_in_small_batches_whatever_its_row_groups(tmp_path):
    path = tmp_path / "a.parquet"
    texts = [f"{i} " * 5000 for i in range(500)]
    pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode()}), path, row_group_size=500)
    assert documents(path) == [one.encode() for one in texts]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.csv", "a.parquet"])
def test_an_empty_file_holds_no_document(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"")
    assert documents(path) == []


@pytest.mark.parametrize(("name", "content"), [("a.txt", "a" * 3000), ("a.jsonl", json.dumps({"text": "a" * 3000})), ("a.csv", "text\n" + "a" * 3000)])
def test_a_document_too_large_is_refused_with_advice(name, content, tmp_path, monkeypatch):
    for module in (text, readers):
        monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", 2000)
    with pytest.raises(ValueError, match=rf"{name}.*(above 0 MiB.*data\.document|field larger than field limit)"):
        documents(write(tmp_path / name, content))


def test_what_is_text_is_told_by_the_name(tmp_path):
    kinds = {"a.txt": "txt", "A.TXT.GZ": "txt", "a.jsonl.gz": "jsonl", "a.csv": "csv", "a.parquet": "parquet"}
    others = ["README.md", "a.json", "a", ".gitignore", "a.parquet.gz", "a.gz", "a.txt.dvc", "txt"]
    assert {name: readers.kind(tmp_path / name) for name in kinds} == kinds
    assert [readers.kind(tmp_path / name) for name in others] == [""] * 8
