"""What the tests of stages/data build on: settings, files of text, and token folders made on the spot."""

from pathlib import Path
from typing import Any

import numpy as np

from stages import params
from stages.data.shards import SPLITS, Duplicates, Meta, Shard, SplitMeta, open_split, token_dtype, token_file, write_meta

TEXT = Path("inputs/text")


def data(source: str = "inputs/text", **changes: Any) -> params.Data:
    """The section `data` for one's own text: a tenth each for validation and test."""
    values = {
        "source": source,
        "revision": None,
        "text_field": "text",
        "document": "file",
        "encoding": "utf-8",
        "encoding_errors": "strict",
        "validation": 0.1,
        "test": 0.1,
    }
    return params.Data.model_validate({**values, **changes})


def tokenizer(source: str = "train", vocab_size: int = 512) -> params.Tokenizer:
    """The section `tokenizer`."""
    return params.Tokenizer.model_validate({"source": source, "vocab_size": vocab_size})


def put(name: str, content: bytes | str) -> Path:
    """A file under inputs/text of the working directory."""
    path = TEXT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def token_folder(folder: Path, tokens: dict[str, Any] | Any, vocab_size: int = 97) -> Path:
    """Write `tokens` (of each split, or the same for all) with their meta.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = token_dtype(vocab_size)
    splits = {}
    for split in SPLITS:
        ids = np.asarray(tokens[split] if isinstance(tokens, dict) else tokens, dtype)
        ids.tofile(token_file(folder, split))
        splits[split] = SplitMeta(documents=1, tokens=len(ids), bytes=4 * len(ids))
    meta = Meta(
        vocab_size=vocab_size,
        dtype=dtype,
        end_of_text=0,
        mask_token=2,
        pad_token=1,
        splits=splits,
        sources=[],
        tokenizer_sha256="",
        duplicates=Duplicates(validation_in_train=0, test_in_train=0, test_in_validation=0),
    )
    write_meta(meta, folder)
    return folder


def shard(folder: Path, count: int, vocab_size: int = 97) -> Shard:
    """A train shard of `count` tokens: 3, 4, 5, ... modulo the vocabulary."""
    return open_split(token_folder(folder, (np.arange(count) + 3) % vocab_size, vocab_size), "train")
