"""Randomness: one Philox stream for every purpose, named by a seed and a path.

Everything that is hashed, sent or published draws from a `Stream`. A stream reads only the raw 64-bit words of the bit
generator, which numpy promises never to change. It implements every distribution itself: integers by rejection, continuous
distributions by their inverse distribution function. `exp` and `log` differ in their last bit between machines, so
probabilities are rounded to multiples of 2**-40 before they decide anything. Streams of different paths are independent, so
results depend neither on order nor on parallelism. No function of this module uses a global generator.

For draws that are neither hashed nor published (mini-batch orders, sampling noise), `generator` gives a `numpy.random.Generator`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedagentgym.base.errors import OptionError, show_value

T = TypeVar("T")
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
GRID = 1 << 40
MAX_BITS = 256
"""Maximum size of a seed in bits; a longer seed would only be slow to read."""
_WORDS = 1 << 64
_BUFFER = 64


def path_bytes(seed: int, path: tuple[int | str, ...]) -> bytes:
    """The bytes that are hashed to the key of a stream; a type mark distinguishes the path (1,) from ("1",)."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise OptionError(f"a seed must be an integer, got {show_value(seed)}")
    if int(seed).bit_length() > MAX_BITS:
        raise OptionError(f"a seed has at most {MAX_BITS} bits, got one of {int(seed).bit_length():,}")
    marked = [f"i{int(part)}" if isinstance(part, int | np.integer) else f"s{part}" for part in (seed, *path)]
    return b"".join(len(raw).to_bytes(4, "little") + raw for raw in (mark.encode() for mark in marked))


def _key(seed: int, path: tuple[int | str, ...]) -> bytes:
    """The 128-bit key of a stream."""
    return hashlib.sha256(path_bytes(seed, path)).digest()[:16]


def derive(seed: int, *path: int | str) -> int:
    """A child seed of 63 bits, for code that takes an integer seed."""
    return int.from_bytes(_key(seed, path)[:8], "little") >> 1


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator of this path, for draws that are neither hashed nor published."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_key(seed, path), "little")))


def stream(seed: int, *path: int | str) -> Stream:
    """Return the random stream of a seed and a path.

    Streams of different paths are independent, and a stream has the same draws in every process, on every machine and with
    every version of numpy. Use streams for the draws of your own samplers and environments.

    Args:
        seed: An integer of at most 256 bits.
        *path: Texts and integers that name the purpose of the draws.

    Returns:
        A `Stream` with `integers`, `uniform`, `normal`, `permutation`, `choice`, `pick`, `shuffled` and further draws.

    Raises:
        OptionError: If the seed is no integer, or too large.

    Examples:
        >>> stream(0, "deal", 7).integers(6) == stream(0, "deal", 7).integers(6)
        True
    """
    return Stream(int.from_bytes(_key(seed, path), "little"))


def on_grid(probabilities: ArrayLike) -> Ints:
    """Probabilities in whole units of 2**-40, so that a draw has the same outcome on every machine."""
    return np.rint(np.asarray(probabilities, dtype=np.float64) * GRID).astype(np.int64)


class Stream:
    """A sequence of 64-bit words and the distributions built on it. Draws are scalars if `size` is None, arrays otherwise."""

    def __init__(self, key: int) -> None:
        self._bits = np.random.Philox(key=key)
        self._ahead: list[int] = []

    def raw(self, n: int) -> NDArray[np.uint64]:
        """The next n words."""
        ready = min(n, len(self._ahead))
        if not ready:
            return self._bits.random_raw(n)
        head = np.array([self._ahead.pop() for _ in range(ready)], dtype=np.uint64)
        return np.concatenate([head, self._bits.random_raw(n - ready)]) if n > ready else head

    def _word(self) -> int:
        if not self._ahead:
            self._ahead = self._bits.random_raw(_BUFFER).tolist()[::-1]
        return self._ahead.pop()

    @overload
    def integers(self, high: int, size: None = None) -> int: ...
    @overload
    def integers(self, high: int, size: int) -> Ints: ...
    def integers(self, high: int, size: int | None = None) -> int | Ints:
        """Integers x with 0 <= x < high, each equally likely."""
        if not 0 < high <= 1 << 63:
            raise OptionError(f"cannot draw an integer below {high}")
        bound = _WORDS - _WORDS % high
        if size is None:
            word = self._word()
            while word >= bound:
                word = self._word()
            return word % high
        words = self.raw(size)
        if bound < _WORDS:
            while (refused := np.flatnonzero(words >= np.uint64(bound))).size:
                words[refused] = self.raw(refused.size)
        return (words % np.uint64(high)).astype(np.int64)

    @overload
    def uniform(self, size: None = None) -> float: ...
    @overload
    def uniform(self, size: int) -> Floats: ...
    def uniform(self, size: int | None = None) -> float | Floats:
        """Numbers strictly between 0 and 1, on a grid of 2**-53 offset by half a step."""
        if size is None:
            return ((self._word() >> 11) + 0.5) * 2.0**-53
        return ((self.raw(size) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    @overload
    def normal(self, mean: ArrayLike = 0.0, std: ArrayLike = 1.0, size: None = None) -> float: ...
    @overload
    def normal(self, mean: ArrayLike = 0.0, std: ArrayLike = 1.0, *, size: int) -> Floats: ...
    def normal(self, mean: ArrayLike = 0.0, std: ArrayLike = 1.0, size: int | None = None) -> float | Floats:
        from scipy.special import ndtri

        drawn = np.asarray(mean) + np.asarray(std) * ndtri(self.uniform(1 if size is None else size))
        return float(drawn[0]) if size is None else np.asarray(drawn, dtype=np.float64)

    def log_gamma(self, shape: ArrayLike) -> Floats:
        """Logarithms of Gamma(shape, 1) draws, one per entry; the draws themselves would underflow for small shapes."""
        a = np.atleast_1d(np.asarray(shape, dtype=np.float64))
        first, second = self.uniform(a.size).reshape(a.shape), self.uniform(a.size).reshape(a.shape)
        return log_gamma_quantile(a, first, second)

    @overload
    def weighted(self, probabilities: ArrayLike, size: None = None) -> int: ...
    @overload
    def weighted(self, probabilities: ArrayLike, size: int) -> Ints: ...
    def weighted(self, probabilities: ArrayLike, size: int | None = None) -> int | Ints:
        """Indices drawn with the given probabilities (they need not sum to one)."""
        ends = np.cumsum(on_grid(probabilities))
        if not ends.size or ends[-1] <= 0:
            raise OptionError("cannot draw among outcomes that all have probability zero")
        drawn = self.integers(int(ends[-1]), size=1 if size is None else size)
        index = np.searchsorted(ends, drawn, side="right").astype(np.int64)
        return int(index[0]) if size is None else index

    def permutation(self, n: int) -> Ints:
        """The numbers 0..n-1 in random order, which is the sorting order of n random words."""
        return np.argsort(self.raw(n), kind="stable").astype(np.int64)

    def choice(self, n: int, k: int) -> Ints:
        """k distinct numbers below n, in random order."""
        if not 0 <= k <= n:
            raise OptionError(f"cannot choose {k} distinct items of {n}")
        if 3 * k >= n:
            return self.permutation(n)[:k]
        kept: dict[int, None] = {}
        while len(kept) < k:
            kept.update(dict.fromkeys(self.integers(n, size=k - len(kept)).tolist()))
        return np.fromiter(kept, dtype=np.int64, count=k)

    def pick(self, sequence: Sequence[T]) -> T:
        """A random item of a sequence."""
        return sequence[self.integers(len(sequence))]

    def shuffled(self, sequence: Sequence[T]) -> list[T]:
        """The items in random order."""
        return [sequence[index] for index in self.permutation(len(sequence)).tolist()]


def log_gamma_quantile(shape: Floats, first: Floats, second: Floats) -> Floats:
    """The logarithm of a Gamma(shape, 1) variable, computed from two uniform numbers.

    For shapes below 1 it uses Gamma(a) = Gamma(a + 1) * U**(1/a) in logarithms, since the plain form underflows for small draws.
    """
    from scipy.special import gammaincinv

    small = shape < 1.0
    logs: Any = np.log(gammaincinv(np.where(small, shape + 1.0, shape), first))
    return np.asarray(np.where(small, logs + np.log(second) / shape, logs), dtype=np.float64)


Words = NDArray[np.uint64]

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class StreamBatch:
    """The streams (seed, *path, first), (seed, *path, first + 1), ...; each counts the words it has returned.

    One bit generator object per client costs microseconds to make and a Python call per draw; a hundred thousand clients with a
    hundred draws each would take minutes. Philox is counter-based, so a block of four words is a pure function of (key,
    counter). Here whole arrays of blocks are computed together, with the same bits as those of numpy's own generator.
    """

    def __init__(self, seed: int, *path: int | str, first: int = 0, count: int) -> None:
        common = hashlib.sha256(path_bytes(seed, path))  # the part of the path that all streams share is hashed once
        raw = bytearray()
        for number in range(first, first + count):
            hasher = common.copy()
            mark = f"i{number}".encode()
            hasher.update(len(mark).to_bytes(4, "little") + mark)
            raw += hasher.digest()[:16]
        self._keys: Words = np.frombuffer(bytes(raw), dtype="<u8").reshape(count, 2).astype(np.uint64)
        self._used = np.zeros(count, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._used)

    def random_raw(self, counts: Ints) -> Words:
        """The next `counts[k]` words of every stream k, concatenated."""
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
    """Each word as an integer below its entry of `high`, and a mask of the words to keep; the rest would bias the draw."""
    bound = high.astype(np.uint64)
    remainder = (np.uint64(0) - bound) % bound
    return (words % bound).astype(np.int64), words <= _ALL - remainder


def _compute_blocks(counter: Words, keys: Words) -> Words:
    """Philox4x64-10 of the counters (counter, 0, 0, 0), with four words per row."""
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
