"""Many Philox streams at once: the words of `streams.stream(seed, *path, k)` for k = 0, 1, 2, ..., computed in numpy.

One bit generator object per client costs microseconds to make and a Python call per draw; a hundred thousand clients
with a hundred draws each would take minutes. Philox is counter-based, so a block of four words is a pure function of
(key, counter): here whole arrays of blocks are computed together, bit for bit those that numpy's own generator gives.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.streams import path_bytes

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class StreamBatch:
    """The streams (seed, *path, first), (seed, *path, first + 1), ...; each counts the words it has returned."""

    def __init__(self, seed: int, *path: int | str, first: int = 0, count: int) -> None:
        self._keys = _derive_keys(seed, path, first, count)
        self._used = np.zeros(count, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._used)

    def random_raw(self, counts: Ints) -> Words:
        """The next `counts[k]` words of stream k, concatenated."""
        first_block = self._used // 4
        blocks = np.where(counts > 0, (self._used + counts + 3) // 4 - first_block, 0)
        owner = np.repeat(np.arange(len(self)), blocks)
        block_start = np.cumsum(blocks) - blocks
        counter = first_block[owner] + np.arange(owner.size) - block_start[owner]
        words = _compute_blocks(counter.astype(np.uint64) + np.uint64(1), self._keys[owner]).reshape(-1)
        if int(counts.sum()) != words.size:
            offset = 4 * block_start + self._used - 4 * first_block
            stream = np.repeat(np.arange(len(self)), counts)
            within = np.arange(stream.size) - (np.cumsum(counts) - counts)[stream]
            words = words[offset[stream] + within]
        self._used = self._used + counts
        return words

    def uniform(self, each: int) -> NDArray[np.float64]:
        """`each` numbers strictly between 0 and 1 from every stream: one row per stream."""
        words = self.random_raw(np.full(len(self), each, dtype=np.int64)).reshape(len(self), each)
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, each: int) -> NDArray[np.float64]:
        """`each` standard normal numbers from every stream."""
        from scipy.special import ndtri

        return np.asarray(ndtri(self.uniform(each)), dtype=np.float64)


def reduce_below(words: Words, high: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Each word as an integer below its own `high`, and which words must be rejected to keep the draw unbiased."""
    bound = high.astype(np.uint64)
    remainder = (np.uint64(0) - bound) % bound
    return (words % bound).astype(np.int64), words <= _ALL - remainder


def _derive_keys(seed: int, path: tuple[int | str, ...], first: int, count: int) -> Words:
    """The 128-bit keys of the streams; the common part of the path is hashed once."""
    common = hashlib.sha256(path_bytes(seed, path))
    raw = bytearray()
    for number in range(first, first + count):
        hasher = common.copy()
        mark = f"i{number}".encode()
        hasher.update(len(mark).to_bytes(4, "little") + mark)
        raw += hasher.digest()[:16]
    return np.frombuffer(bytes(raw), dtype="<u8").reshape(count, 2).astype(np.uint64)


def _compute_blocks(counter: Words, keys: Words) -> Words:
    """Philox4x64-10 of the counters (counter, 0, 0, 0): four words a row."""
    size = 1 << 15
    if counter.size > size:
        parts = range(0, counter.size, size)
        return np.concatenate([_compute_blocks(counter[at : at + size], keys[at : at + size]) for at in parts])
    key0, key1 = keys[:, 0].copy(), keys[:, 1].copy()
    zero = np.zeros_like(counter)
    c0, c1, c2, c3 = counter, zero, zero, zero
    for number in range(_ROUNDS):
        if number:
            key0 += np.uint64(_WEYL[0])
            key1 += np.uint64(_WEYL[1])
        high0, low0 = _multiply_wide(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply_wide(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
    return np.stack([c0, c1, c2, c3], axis=1)


def _multiply_wide(multiplier: int, words: Words) -> tuple[Words, Words]:
    """High and low halves of the 128-bit products, by four products of 32-bit halves."""
    a_high, a_low = np.uint64(multiplier >> 32), np.uint64(multiplier & 0xFFFFFFFF)
    b_high, b_low = words >> _HALF, words & _LOW
    low = a_low * b_low
    middle = a_high * b_low + (low >> _HALF)
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _HALF) + (other >> _HALF), np.uint64(multiplier) * words
