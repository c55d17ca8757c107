"""What the same text costs without a network: general compressors, and adaptive models that know only how often each symbol came."""

import bz2
import lzma
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.data.shards import Shard

CHUNK = 1 << 20
BYTES = 256


def compressors(path: Path) -> dict[str, float]:
    """Bits per byte of the file at `path` under zlib -9, bz2 -9, xz -9e and adaptive byte counts, read once as a stream.

    ValueError when there is no text.
    """
    squeezers: dict[str, Any] = {
        "zlib": zlib.compressobj(9),
        "bz2": bz2.BZ2Compressor(9),
        "xz": lzma.LZMACompressor(preset=9 | lzma.PRESET_EXTREME),
    }
    sizes = dict.fromkeys(squeezers, 0)
    counts = np.zeros(BYTES, np.int64)
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            counts += np.bincount(np.frombuffer(block, np.uint8), minlength=BYTES)
            for name, squeezer in squeezers.items():
                sizes[name] += len(squeezer.compress(block))
    for name, squeezer in squeezers.items():
        sizes[name] += len(squeezer.flush())
    length = int(counts.sum())
    if length == 0:
        raise ValueError(f"{path} is empty, so there is nothing to compare with; hold out more in data.test")
    return {name: 8 * size / length for name, size in sizes.items()} | {"unigram": adaptive_nats(counts) / math.log(2) / length}


def token_unigram(shard: Shard, vocab_size: int) -> float:
    """Nats per token of the split under adaptive token counts: what a model must beat that looks at no context."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, shard.tokens, CHUNK):
        counts += np.bincount(shard.read(start, min(start + CHUNK, shard.tokens)), minlength=vocab_size)
    return adaptive_nats(counts) / int(counts.sum())


def adaptive_nats(counts: NDArray[np.int64]) -> float:
    """Code length of a sequence with these counts when each symbol is predicted from the counts before it, 1/2 added to each.

    The order does not matter: the product of the predictions is a ratio of Gamma functions (Krichevsky and Trofimov 1981, The performance of
    universal encoding).
    """
    symbols, total = len(counts), int(counts.sum())
    seen = math.fsum(math.lgamma(count + 0.5) - math.lgamma(0.5) for count in counts.tolist() if count)
    return math.lgamma(total + symbols / 2) - math.lgamma(symbols / 2) - seen
