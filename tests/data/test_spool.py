"""The spool gives back what was put in, in order, and finds exact duplicates."""

from stages.data import spool as module
from stages.data.splits import fingerprint
from stages.data.spool import Spool, count_shared


def spool(path, documents):
    made = Spool(path)
    with made:
        for document in documents:
            made.add(document, fingerprint(document))
    return made


def test_text_lengths_and_fingerprints(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_DOCUMENTS", 7)
    monkeypatch.setattr(module, "CHUNK", 5)
    documents = [b"x" * (i % 4 + 1) for i in range(100)]
    made = spool(tmp_path / "test.txt", documents)
    assert (made.documents, made.bytes) == (100, 250)
    assert (tmp_path / "test.txt").read_bytes() == b"".join(documents)
    assert list(made.lengths()) == [len(document) for document in documents]
    assert [int(mark) for chunk in made.fingerprints() for mark in chunk] == [fingerprint(document) for document in documents]
    made.keep_only_text()
    assert [path.name for path in tmp_path.iterdir()] == ["test.txt"]


def test_shared_documents_are_counted_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3)
    train = spool(tmp_path / "train.txt", [b"a", b"b", b"a", b"c", *(f"{i}".encode() for i in range(20))])
    held_out = spool(tmp_path / "test.txt", [b"a", b"a", b"x", b"19", b"c "])
    assert count_shared(held_out, train) == 3
    assert count_shared(train, held_out) == 3  # a, a, 19
    assert count_shared(spool(tmp_path / "none.txt", []), train) == 0
    assert count_shared(train, spool(tmp_path / "none.txt", [])) == 0
