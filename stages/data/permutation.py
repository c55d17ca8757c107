"""A keyed permutation of range(size) as a formula: shuffles any number of blocks without ever holding their order."""

from typing import Any

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.uint64]]
ROUNDS = 6


def _mix(value: Integers) -> Integers:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014): each input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def keys(seed: int, *parts: int, count: int) -> Integers:
    """`count` 64-bit keys drawn from (seed, parts) by SplitMix64."""
    state = np.array([0x9E3779B97F4A7C15], np.uint64)
    for part in (seed, *parts):
        state = _mix(state + np.uint64(part & (2**64 - 1)) + np.uint64(0x9E3779B97F4A7C15))
    return _mix(state + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _feistel(index: Integers, half_bits: int, round_keys: Integers) -> Integers:
    """A bijection of range(4 ** half_bits): a balanced Feistel network."""
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left, right = index >> shift, index & mask
    for key in round_keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def permute(index: Integers, size: int, seed: int, epoch: int) -> Integers:
    """Where each of `index` (values below `size`) goes in the order of (seed, epoch); a bijection of range(size).

    A Feistel network on the next power of four, walked along its cycle until the value falls below `size` (Black, Rogaway 2002:
    "Ciphers with arbitrary finite domains"): at most four steps on average.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    round_keys = keys(seed, epoch, count=ROUNDS)
    place = _feistel(index.astype(np.uint64), half_bits, round_keys)
    while (outside := place >= size).any():
        place[outside] = _feistel(place[outside], half_bits, round_keys)
    return place
