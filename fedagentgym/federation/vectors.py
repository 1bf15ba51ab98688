"""Arithmetic on long vectors that reads each of them once: block by block, so that a block stays in the processor's cache.

One pass computes whether an array is finite and how far it is from another one: a finite distance proves that both arrays are
finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parameters = Mapping[str, Array]
LONGEST_BLOCK = 1 << 17
_SHORTEST_BLOCK = 1 << 10
_ROW = 1 << 13


def blocks(size: int, longest: int | None = None) -> Iterator[slice]:
    """Blocks of a long vector that stay in a processor's cache during several passes."""
    step = LONGEST_BLOCK if longest is None else max(longest, _SHORTEST_BLOCK)
    for start in range(0, size, step):
        yield slice(start, min(size, start + step))


def longest_block(size: int) -> int:
    """The size of a buffer that holds any block of a vector."""
    return min(size, LONGEST_BLOCK)


def squared_length(vector: Array) -> float:
    """Sum of squares, in rows so short that no linear algebra library divides one among its threads."""
    whole = vector.size // _ROW * _ROW
    rows, rest = vector[:whole].reshape(-1, _ROW), vector[whole:]
    return float(np.vecdot(rows, rows).sum()) + float(np.dot(rest, rest))


def squared_distance(start: Array, end: Array) -> float:
    """Sum of the squares of `end - start`, two arrays of one shape; not finite if either of them is not."""
    first, second = start.reshape(-1), end.reshape(-1)
    change = np.empty(longest_block(first.size), dtype=np.promote_types(first.dtype, np.float32))
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(first.size):
            part = change[: block.stop - block.start]
            np.subtract(second[block], first[block], out=part, dtype=part.dtype)
            total += squared_length(part)
    return total


def update_norm(
    current: Parameters, parameters: Parameters, known: Mapping[str, float] = MappingProxyType({})
) -> float:
    """Euclidean norm of `parameters - current` over all arrays; `known` squared distances are not computed again."""
    total = 0.0
    for name, value in current.items():
        total += known[name] if name in known else squared_distance(value, parameters[name])
    return math.sqrt(total)


def is_finite(array: Array) -> bool:
    """Whether an array is free of NaN and infinity."""
    if array.dtype.kind != "f":
        return True
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        sure = math.isfinite(squared_length(flat))  # reads the array once; only after an overflow a second time
    return sure or bool(np.isfinite(flat).all())
