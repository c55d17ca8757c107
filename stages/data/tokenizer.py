"""Byte-level BPE as GPT-2's."""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

FOLDER = Path("data/tokenizer")
END_OF_TEXT, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"  # ids 0, 1, 2 of a trained tokenizer


def _byte_level(model: models.BPE) -> Tokenizer:
    """`model` in GPT-2's pipeline: its words' pattern, every byte representable, no space put in front."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def train(texts: Iterator[list[str]], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` entries; the same for the same texts, in any order and on any number of threads."""
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT, PAD, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load(folder: Path = FOLDER) -> Tokenizer:
    """The tokenizer in `folder`; text that looks like a special token is encoded as text."""
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer
