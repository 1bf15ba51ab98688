"""A weighted mean of parameters that are added one after the other.

Sums are taken in float64, in the order in which updates are added, so that the mean of one client equals that client's update bit
for bit. A few updates are summed in one pass over the memory; their number and total size are limited.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.federation.vectors import Array, Parameters, blocks, longest_block

HELD_MODELS = 10
"""Updates that are summed in one pass."""
HELD_BYTES = 1 << 31
"""Maximum size of the waiting updates in bytes; a larger update waits alone."""


class RunningMean:
    """Sum of weight * update over the sum of weights, for arrays with the names, shapes and dtypes of `current`."""

    def __init__(self, current: Parameters) -> None:
        self._current = current
        self._total = 0.0
        self._pending: list[tuple[Parameters, float]] = []
        self._bytes = 0
        self._sums: dict[str, NDArray[np.float64]] = {}

    def add(self, update: Parameters, weight: float = 1.0) -> None:
        """Add an update with a weight; its arrays must not change before the mean is taken."""
        size = sum(update[name].nbytes for name in self._current)
        if self._pending and (len(self._pending) == HELD_MODELS or self._bytes + size > HELD_BYTES):
            self._sum_pending()
        self._pending.append((update, weight))
        self._bytes += size
        self._total += weight

    def finish(self, *, narrow: bool = True) -> dict[str, Array]:
        """The mean, read-only so that it can be sent and committed without a copy; `narrow` gives the dtypes of `current`."""
        if not self._pending:
            raise DataError("cannot average: no update was added")
        if not self._total > 0.0:
            raise DataError("cannot average clients whose weights are all zero")
        result = {}
        for name, value in self._current.items():
            mean = np.empty(value.size, dtype=value.dtype if narrow else np.float64)
            for block, summed in self._sum_blocks(name, value.size):
                summed /= self._total
                mean[block] = summed
            mean.flags.writeable = False
            result[name] = mean.reshape(value.shape)
        return result

    def _sum_pending(self) -> None:
        """Add the waiting updates to the sums."""
        for name, value in self._current.items():
            sums = self._sums.get(name)
            if sums is None:
                sums = np.empty(value.size, dtype=np.float64)
            for block, summed in self._sum_blocks(name, value.size):
                sums[block] = summed
            self._sums[name] = sums
        self._pending, self._bytes = [], 0

    def _sum_blocks(self, name: str, size: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Block by block, the sum so far plus the waiting updates, in a buffer that the next block overwrites."""
        sums = self._sums.get(name)
        first = 0 if sums is None else 1
        parts = [(update[name].reshape(-1), weight) for update, weight in self._pending]
        rows = np.empty((first + len(parts) + 1, longest_block(size)), dtype=np.float64)
        for block in blocks(size):
            buffer = rows[:, : block.stop - block.start]
            if sums is not None:
                buffer[0] = sums[block]
            for row, (vector, weight) in zip(buffer[first:], parts, strict=False):
                row[:] = vector[block]
                if weight != 1.0:
                    row *= weight
            summed: NDArray[np.float64] = buffer[-1]
            # from -0.0: starting at 0.0, the sign of a lone -0.0 would be lost
            np.add.reduce(buffer[:-1], axis=0, out=summed, initial=-0.0)
            yield block, summed
