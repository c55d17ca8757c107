"""Documents cut into pieces encode to exactly the ids of the whole, for every tokenizer that may be cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from stages.data import tokenizer as ours
from stages.data.pieces import batches, can_be_cut, pieces
from tests.data.test_spool import spool


def bert():
    characters = [chr(code) for code in range(33, 127)] + ["é", "中", "国", "。"]
    vocabulary = {token: index for index, token in enumerate(["[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{one}" for one in characters)])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made.encode_special_tokens = True
    return made


@pytest.fixture(scope="module")
def known():
    gpt2 = ours.gpt2()
    gpt2.encode_special_tokens = True
    return {"gpt2": gpt2, "bert": bert()}


# White space of every kind, letters, digits and marks of several widths, contractions, and a special token's text.
SPACES = [" ", "  ", "\n", "\t", "\r\n", "\x0b", "\x1c", "\x85", "\xa0", "\u1680", "\u180e", "\u2003", "\u2028", "\u3000"]
WORDS = ["a", "b", " the", "7", "٣", "½", ".", ",", "-", "_", "'", '"', "'s", "'ll", "“", "”", "<|endoftext|>", "[SEP]"]
OTHERS = ["é", "е", "ǅ", "中国", "。", "，", "のは", "한", "ไทย", "😀", "\u0301", "\u200d", "\ufeff"]
PARTS = st.sampled_from([*SPACES, *WORDS, *OTHERS])


@settings(max_examples=400, deadline=None)
@given(parts=st.lists(PARTS, max_size=60), piece_bytes=st.integers(1, 40))
def test_pieces_encode_to_the_ids_of_the_whole(known, tmp_path_factory, parts, piece_bytes):
    text = "".join(parts)
    made = spool(tmp_path_factory.mktemp("cut") / "a.txt", [text.encode()] if text else [])
    cut = list(pieces(made, cut=True, piece_bytes=piece_bytes))
    assert "".join(piece.text for piece in cut) == text
    assert [piece.last for piece in cut] == [False] * (len(cut) - 1) + [True] * bool(cut)
    assert sum(piece.size for piece in cut) == len(text.encode())
    for name, tokenizer in known.items():
        together = [identity for piece in cut for identity in tokenizer.encode(piece.text, add_special_tokens=False).ids]
        assert together == tokenizer.encode(text, add_special_tokens=False).ids, name


def test_long_documents_are_cut_short_ones_are_not(tmp_path):
    made = spool(tmp_path / "a.txt", [b"short one", b"word " * 1000, "字字。".encode() * 500, b"x" * 5000, b"end"])
    cut = list(pieces(made, cut=True, piece_bytes=100))
    assert cut[0].text == "short one" and cut[-1].text == "end"
    assert sum(piece.last for piece in cut) == 5
    assert max(piece.size for piece in cut if "word" in piece.text) <= 110
    assert max(piece.size for piece in cut if "字" in piece.text) <= 120
    assert [piece.size for piece in cut if "x" in piece.text] == [5000]  # one word: nowhere to cut
    assert [piece.size for piece in pieces(made, cut=False, piece_bytes=100)] == [9, 5000, 4500, 5000, 3]


def test_a_document_without_a_place_to_cut_takes_time_in_proportion(tmp_path):
    made = spool(tmp_path / "a.txt", [b"x" * (8 << 20)])
    assert [piece.size for piece in pieces(made, cut=True)] == [8 << 20]


def test_only_word_by_word_pipelines_may_be_cut(known):
    assert can_be_cut(known["gpt2"]) and can_be_cut(known["bert"])
    prefixed, metaspace, composed, with_token, random, lowered = (ours.gpt2() for _ in range(6))
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace()
    composed.normalizer = normalizers.NFC()
    with_token.add_tokens([AddedToken("two words")])
    random.model.dropout = 0.1
    lowered.pre_tokenizer = None
    assert [can_be_cut(one) for one in (prefixed, metaspace, composed, with_token, random, lowered)] == [False] * 6


def test_batches_hold_about_as_much_as_asked(tmp_path):
    made = spool(tmp_path / "a.txt", [b"word " * (i % 50 + 1) for i in range(500)])
    found = list(batches(pieces(made, cut=True), 2000))
    assert sum(len(batch) for batch in found) == 500
    assert len(found) > 20
    assert max(sum(piece.size for piece in batch) for batch in found) < 2000 + 250
