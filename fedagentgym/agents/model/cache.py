"""The key-value cache of a session: one slot per row, which the row fills from column 0 without gaps.

A query sees only the columns up to its own position. So padding that a pass writes beyond a row's length is never seen, until
the next real token overwrites it, and a slot can be reused without being cleared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]

_MAX_WHOLE_BYTES = 1 << 25
"""Caches up to this size are allocated for the whole context at once; larger ones grow."""


class Chunks:
    """Tokens to add to the cache: row i adds the next `lengths[i]` tokens of `ids` to slot `slots[i]`, from column `first[i]` on.

    `adapters` holds the number of each row's adapter if a batch has several.
    """

    __slots__ = ("adapters", "columns", "ends", "first", "ids", "lengths", "seen", "single", "slots")

    def __init__(
        self, ids: Integers, slots: Integers, first: Integers, lengths: Integers, adapters: Integers | None = None
    ) -> None:
        self.ids, self.slots, self.first, self.lengths, self.adapters = ids, slots, first, lengths, adapters
        self.ends = np.cumsum(lengths)
        self.seen = first + lengths
        """The number of columns that each row's last token sees."""
        self.columns = int(self.seen.max())
        self.single = len(ids) == len(slots)
        """True if every row adds one token."""

    @property
    def in_front(self) -> bool:
        """Return whether the rows are in the first slots, in order."""
        return bool((self.slots == np.arange(len(self.slots))).all())

    def locate(self) -> tuple[Integers, Integers]:
        """Return the slot and the position of every token."""
        if self.single:
            return self.slots, self.first
        positions = np.arange(len(self.ids)) + np.repeat(self.seen - self.ends, self.lengths)
        return np.repeat(self.slots, self.lengths), positions

    def split(self, most: int) -> Iterator[tuple[slice, Chunks]]:
        """Yield slices of rows with at most `most` tokens, each with its chunks. A row with more tokens is a slice by itself."""
        start = 0
        while start < len(self.slots):
            begun = int(self.ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(self.ends, begun + most, side="right")))
            rows, ids = slice(start, stop), self.ids[begun : self.ends[stop - 1]]
            adapters = None if self.adapters is None else self.adapters[rows]
            yield rows, Chunks(ids, self.slots[rows], self.first[rows], self.lengths[rows], adapters)
            start = stop


class KVCache:
    """Keys and values of all layers, each [slots, heads, columns, width], so that attention reads contiguous memory."""

    def __init__(self, layers: int, heads: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers, self.heads, self.width = layers, heads, width
        self.dtype, self.device = dtype, device
        self.count = self.columns = self.used = 0
        self._heads = np.arange(heads)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._allocate(0, 0)

    def _allocate(self, count: int, columns: int) -> None:
        """Move to larger tensors, one at a time, so that all old and all new tensors never exist at once."""
        shape = (count, self.heads, columns, self.width)
        self._lines: list[Tensor] = []  # drops views that would keep the old tensors alive
        for stores in (self.keys, self.values):
            for layer in range(self.layers):
                if self.device.type != "cpu" or not all(shape):
                    fresh = torch.zeros(shape, dtype=self.dtype, device=self.device)
                else:  # numpy takes zero pages, which use memory only when they are written; torch would write all of them
                    plain = np.zeros(int(np.prod(shape)) * self.dtype.itemsize, dtype=np.uint8)
                    fresh = torch.from_numpy(plain).view(self.dtype).view(shape)
                if len(stores) <= layer:
                    stores.append(fresh)
                else:
                    fresh[: self.count, :, : self.used] = stores[layer][:, :, : self.used]
                    stores[layer] = fresh
        self._lines = [store.view(-1, self.width) for store in (*self.keys, *self.values)]
        self.count, self.columns = count, columns

    def reserve(self, count: int, columns: int, context: int) -> None:
        """Make room for `count` slots of `columns` columns: for the whole context if that is small, else by half steps."""
        if count <= self.count and columns <= self.columns:
            return
        count = self.count if count <= self.count else max(count, self.count * 3 // 2)
        if columns > self.columns:
            whole = 2 * self.layers * count * self.heads * context * self.width * self.dtype.itemsize
            grown = max(columns + 31 & ~31, self.columns * 3 // 2)
            columns = max(columns, context if whole <= _MAX_WHOLE_BYTES else min(grown, context))
        self._allocate(count, max(columns, self.columns))

    def find_cells(self, slots: Integers, positions: Integers) -> Tensor:
        """Return the indices at which `write` stores the heads of tokens, [tokens * heads]."""
        self.used = max(self.used, int(positions.max()) + 1)
        lines = slots[:, None] * self.heads + self._heads
        return torch.from_numpy((lines * self.columns + positions[:, None]).ravel()).to(self.device)

    def write(self, layer: int, cells: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [tokens, heads, width]."""
        for lines, new in ((self._lines[layer], keys), (self._lines[self.layers + layer], values)):
            lines.index_copy_(0, cells, new.to(self.dtype).reshape(-1, self.width))

    def copy_slots(self, targets: Sequence[int], sources: Sequence[int], columns: int | None = None) -> None:
        """Copy slots simultaneously: `targets[i]` gets the content of `sources[i]`, or its first `columns` columns."""
        to, of = (torch.tensor(slots, device=self.device) for slots in (targets, sources))
        for store in (*self.keys, *self.values):
            held = store[:, :, : self.used if columns is None else columns]
            held.index_copy_(0, to, held.index_select(0, of))

    def copy_columns(self, source: int, targets: Sequence[int], first: int, stop: int) -> None:
        """Copy columns `first` to `stop` of one slot to others."""
        to = torch.tensor(targets, device=self.device)
        for store in (*self.keys, *self.values):
            store[to, :, first:stop] = store[source, :, first:stop]
