"""Files as text: nothing lost, and every complaint names the file and the byte."""

import gzip

import pytest

from stages.data import text
from stages.data.text import BLOCK_BYTES, check_encoding, lines, text_blocks


def read(path, encoding="utf-8", errors="strict"):
    return "".join(text_blocks(path, encoding, errors))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("content", ["", "\n", "a\r\nb\rc\n\n", "é" * BLOCK_BYTES, "x" + "😀" * 300_000, "no end"])
def test_text_comes_back_as_it_was_written(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode(), 1) if name.endswith("gz") else content.encode())
    assert read(path) == content
    assert "".join(lines(path, "utf-8", "strict")) == content


def test_lines_end_at_line_feeds_only_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 3)
    path = tmp_path / "a.txt"
    path.write_bytes("one\r\n\n  \ntwo\rstill two\u2028 too\nlast".encode())
    assert list(lines(path, "utf-8", "strict")) == ["one\r\n", "\n", "  \n", "two\rstill two\u2028 too\n", "last"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32"])
def test_a_byte_order_mark_is_no_text(encoding, tmp_path):
    path = tmp_path / "a.txt"
    mark = "" if encoding in ("utf-16", "utf-8-sig", "utf-32") else "\ufeff"
    path.write_bytes((mark + "abc \ufeff").encode(encoding))
    assert read(path, encoding) == "abc \ufeff"  # only the one at the start


def test_latin_1_is_read_as_told(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("café".encode("latin-1"))
    assert read(path, "latin-1") == "café"
    with pytest.raises(ValueError, match=r"a\.txt: byte 0xe9 at offset 3 is not utf-8.*data\.encoding.*latin-1.*data\.encoding_errors=replace"):
        read(path)
    assert read(path, errors="replace") == "caf\ufffd"


@pytest.mark.parametrize("offset", [0, 5, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 1_000_000, 3 * BLOCK_BYTES + 7])
def test_a_bad_byte_is_named_by_its_offset(offset, tmp_path):
    path = tmp_path / "a.txt"
    content = bytearray(b"a" * (4 * BLOCK_BYTES))
    content[offset] = 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"byte 0xff at offset {offset} is not utf-8"):
        read(path)
    assert read(path, errors="replace") == "a" * offset + "\ufffd" + "a" * (4 * BLOCK_BYTES - offset - 1)


def test_a_character_cut_off_at_a_block_or_at_the_end_is_named_by_its_start(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * (BLOCK_BYTES - 1) + b"\xe2\x82" + b"a")
    with pytest.raises(ValueError, match=rf"byte 0xe2 at offset {BLOCK_BYTES - 1} "):
        read(path)
    path.write_bytes(b"ab\xe2\x82")
    with pytest.raises(ValueError, match="byte 0xe2 at offset 2 is not utf-8"):
        read(path)


def test_utf_16_read_as_utf_8_is_recognized(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("hello".encode("utf-16"))
    with pytest.raises(ValueError, match=r"byte 0xff at offset 0.*set data\.encoding to utf-16, as its first bytes say"):
        read(path)
    path.write_bytes("hello".encode("utf-16-le"))  # no mark: valid UTF-8 full of zero bytes
    with pytest.raises(ValueError, match=r"looks like UTF-16: set data\.encoding to utf-16-le"):
        read(path)
    assert read(path, "utf-16-le") == "hello"
    path.write_bytes("hello".encode("utf-16") + b"x")
    with pytest.raises(ValueError, match="offset 12 is not utf-16"):
        read(path, "utf-16")


@pytest.mark.parametrize("name", ["utf-9", "hex", "rot13", "base64", ""])
def test_an_encoding_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match=r"data\.encoding: .* is no text encoding"):
        check_encoding(name)


def test_a_damaged_gzip_file_is_refused(tmp_path):
    path = tmp_path / "a.txt.gz"
    whole = gzip.compress(b"hello " * 1000)
    for damaged in (b"plain text", whole[:-9], whole[:40] + b"\xff\xff\xff" + whole[43:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.txt\.gz is no whole gzip file"):
            read(path)


def test_a_line_too_long_for_one_document_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MAX_DOCUMENT_BYTES", 2 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a" * (3 << 20))
    with pytest.raises(ValueError, match=r"a\.jsonl: a line is above 2 MiB.*data\.document to paragraph or line"):
        list(lines(path, "utf-8", "strict"))
