"""Which client holds which items: two integer arrays, whatever the number of clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Client k holds the items `items[offsets[k]:offsets[k + 1]]`, in ascending order."""

    offsets: Ints
    items: Ints

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[int]]) -> Assignment:
        rows = [np.sort(np.fromiter(row, dtype=np.int64)) for row in lists]
        sizes = np.array([row.size for row in rows], dtype=np.int64)
        return cls(compute_offsets(sizes), np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64))

    @classmethod
    def from_pairs(cls, clients: Ints, items: Ints, count: int) -> Assignment:
        """From (client, item) pairs in any order."""
        span = int(items.max()) + 1 if items.size else 1
        keys = np.sort(clients * span + items)
        return cls(compute_offsets(np.bincount(clients, minlength=count)), keys % span)

    @classmethod
    def concatenate(cls, parts: Iterable[Assignment]) -> Assignment:
        """The clients of several assignments, one after the other."""
        parts = list(parts)
        sizes = np.concatenate([part.sizes for part in parts])
        return cls(compute_offsets(sizes), np.concatenate([part.items for part in parts]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Ints:
        return self.items[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def owners(self) -> Ints:
        """The client of every entry of `items`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def count_copies(self, items: int) -> Ints:
        """How many clients hold each of the items 0 .. items-1."""
        return np.bincount(self.items, minlength=items).astype(np.int64)

    def renumber(self, names: Ints) -> Assignment:
        """Item i is replaced by `names[i]`; `names` ascends, so the order within clients is preserved."""
        return Assignment(self.offsets, names[self.items])

    def same_as(self, other: Assignment) -> bool:
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.items, other.items)

    def has_repeats(self) -> bool:
        """Whether some client holds an item twice."""
        owners, items = self.owners, np.asarray(self.items)
        return bool(np.any((items[1:] == items[:-1]) & (owners[1:] == owners[:-1])))


def compute_offsets(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
