"""What a tokenizer is trained on: everything, unless that is too large or too varied for the memory."""

import random

import pytest

from stages.data import sample
from stages.data.sample import training_texts
from tests.data.test_spool import spool


def taken(made):
    found, step = training_texts(made)
    return [piece.text for batch in found for piece in batch], step


def test_all_of_an_ordinary_split(tmp_path):
    documents = [f"speech {i} of the union\n" * 50 for i in range(200)]
    texts, step = taken(spool(tmp_path / "a.txt", [one.encode() for one in documents]))
    assert step == 1
    assert texts == documents


def test_a_large_split_is_sampled_evenly_and_always_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "MAX_BYTES", 400_000)
    documents = [f"speech {i} of the union\n" * 50 for i in range(1500)]
    made = spool(tmp_path / "a.txt", [one.encode() for one in documents])
    texts, step = taken(made)
    assert step == 5
    assert 0.15 < sum(map(len, texts)) / made.bytes < 0.3
    assert taken(made)[0] == texts
    places = [documents.index(one) / 1500 for one in texts]
    assert min(places) < 0.1 and max(places) > 0.8


def test_endless_vocabularies_are_sampled_until_their_words_fit(tmp_path):
    generator = random.Random(0)
    documents = [
        b" ".join(generator.randbytes(4).hex().encode().translate(bytes.maketrans(b"0123456789", b"ghijklmnop")) for _ in range(1000)) for _ in range(900)
    ]
    texts, step = taken(spool(tmp_path / "a.txt", documents))
    assert step == 4  # 7.2 MB of distinct words: 2 MiB hold a quarter
    distinct = {word for one in texts for word in one.split()}
    assert 1_000_000 < sum(map(len, distinct)) <= sample.MAX_DISTINCT_BYTES


@pytest.mark.parametrize("documents", [[], [b"one"]])
def test_next_to_nothing_is_taken_whole(documents, tmp_path):
    assert taken(spool(tmp_path / "a.txt", documents)) == ([one.decode() for one in documents], 1)
