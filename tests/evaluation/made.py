"""Splits and texts, made on the spot, with a tokenizer trained on them."""

from pathlib import Path
from typing import Any

import numpy as np

from stages.data import tokenizer as tokenizers
from stages.data.shards import Shard, SplitMeta, open_split, read_meta, write_meta
from tests.data.made import token_folder

TEXT = "Fellow citizens — naïve Ærøskøbing déjà vu 日本語 of the Senate 🙂 and of the House of Representatives:\n\n  I congratulate you.\n"


def random_shard(folder: Path, tokens: int, vocab_size: int = 97, seed: int = 3) -> Shard:
    """A test split of random tokens; none of them special."""
    ids = np.random.default_rng(seed).integers(3, vocab_size, tokens)
    return open_split(token_folder(folder, ids, vocab_size), "test")


def text_split(folder: Path, documents: list[str], entries: int = 300) -> tuple[Shard, Any]:
    """The documents as a test split, each closed by end-of-text, with test.txt beside it, and the byte-level tokenizer made for them."""
    tokenizer = tokenizers.train(iter([documents]), entries)
    ids = [index for document in documents for index in [*tokenizer.encode(document, add_special_tokens=False).ids, 0]]
    token_folder(folder, ids, tokenizer.get_vocab_size())
    text = "".join(documents)
    (folder / "test.txt").write_text(text, "utf-8")
    meta = read_meta(folder)
    split = SplitMeta(documents=len(documents), tokens=len(ids), bytes=len(text.encode()))
    write_meta(meta.model_copy(update={"splits": {**meta.splits, "test": split}}), folder)
    return open_split(folder, "test"), tokenizer
