"""Token folders made on the spot, in the layout that tokenize writes."""

from pathlib import Path
from typing import Any

import numpy as np

from stages.data.shards import SPLITS, Duplicates, Meta, Shard, SplitMeta, open_split, token_dtype, token_file, write_meta


def token_folder(folder: Path, tokens: dict[str, Any] | Any, vocab_size: int = 97) -> Path:
    """Write `tokens` (of each split, or the same for all) with their meta.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = token_dtype(vocab_size)
    splits = {}
    for split in SPLITS:
        ids = np.asarray(tokens[split] if isinstance(tokens, dict) else tokens, dtype)
        ids.tofile(token_file(folder, split))
        splits[split] = SplitMeta(documents=1, tokens=len(ids), bytes=4 * len(ids))
    no_duplicates = Duplicates(validation_in_train=0, test_in_train=0, test_in_validation=0)
    meta = Meta(
        vocab_size=vocab_size, dtype=dtype, end_of_text=0, mask_token=2, pad_token=1, splits=splits, sources=[], tokenizer_sha256="", duplicates=no_duplicates
    )
    write_meta(meta, folder)
    return folder


def shard(folder: Path, count: int, vocab_size: int = 97) -> Shard:
    """A train shard of `count` tokens: 3, 4, 5, ... modulo the vocabulary."""
    return open_split(token_folder(folder, (np.arange(count) + 3) % vocab_size, vocab_size), "train")
