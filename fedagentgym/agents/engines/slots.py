"""The key-value cache of a session: one slot per row, every row packed from column 0, so that no column is ever a hole.

A chunk of ragged length is padded on the right; what the padding writes lies beyond the row's length, is masked (a query sees
columns up to its own position) and overwritten by the next real token. Rows that work together stand in the first slots, so that
attention reads a view and nothing is copied per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class CacheWindow(NamedTuple):
    """Where a chunk is written and what it sees. ``slots``: an index, or None for the first ``rows`` slots."""

    rows: int
    slots: Tensor | None
    positions: Tensor
    cells: Tensor
    columns: int


class KVCache:
    """Keys and values of all layers, each [slots, heads, columns, width]: attention reads whole runs of memory."""

    def __init__(self, layers: int, heads: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers, self.heads, self.width = layers, heads, width
        self.dtype, self.device = dtype, device
        self.count = self.columns = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._allocate(0, 0)

    def _allocate(self, count: int, columns: int) -> None:
        old = list(zip(self.keys, self.values, strict=True))
        self.keys, self.values = [], []
        for layer in range(self.layers):
            for index, store in enumerate((self.keys, self.values)):
                shape = (count, self.heads, columns, self.width)
                fresh = torch.zeros(shape, dtype=self.dtype, device=self.device)
                if old:
                    fresh[: self.count, :, : self.columns] = old[layer][index]
                store.append(fresh)
        self.count, self.columns = count, columns

    def reserve(self, count: int, columns: int) -> None:
        """Make room; grows by half at least, so that growing costs little in total."""
        if count > self.count or columns > self.columns:
            count = self.count if count <= self.count else max(count, self.count * 3 // 2)
            columns = self.columns if columns <= self.columns else max(columns + 31 & ~31, self.columns * 3 // 2)
            self._allocate(count, columns)

    def prepare_window(self, slots: Sequence[int] | int, first: NDArray[np.int64], length: int) -> CacheWindow:
        """Prepare to write ``length`` tokens per row from column ``first`` [rows] on."""
        if isinstance(slots, int):
            rows, index = slots, None
            base = torch.arange(rows, device=self.device)
        else:
            rows = len(slots)
            base = index = torch.tensor(slots, device=self.device)
        positions = torch.from_numpy(first).to(self.device).unsqueeze(1)
        if length > 1:
            positions = positions + torch.arange(length, device=self.device)
        lines = base.unsqueeze(1) * self.heads + torch.arange(self.heads, device=self.device)
        cells = lines.unsqueeze(-1) * self.columns + positions.unsqueeze(1)
        return CacheWindow(rows, index, positions, cells.flatten(), int(first.max()) + length)

    def write(self, layer: int, window: CacheWindow, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [rows, heads, length, width]; return all that the rows hold, [rows, heads, columns, width]."""
        found = []
        for store, new in ((self.keys[layer], keys), (self.values[layer], values)):
            cells = new.to(self.dtype).reshape(-1, self.width)
            store.view(-1, self.width).index_copy_(0, window.cells, cells)
            seen = store[:, :, : window.columns]
            found.append(seen[: window.rows] if window.slots is None else seen.index_select(0, window.slots))
        return found[0], found[1]

    def permute(self, targets: Sequence[int], sources: Sequence[int]) -> None:
        """Move rows: slot ``targets[i]`` takes what ``sources[i]`` held, all at once."""
        to, of = (torch.tensor(slots, device=self.device) for slots in (targets, sources))
        for store in (*self.keys, *self.values):
            store[to] = store[of]

    def copy_prefix(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` columns of one slot to others."""
        to = torch.tensor(targets, device=self.device)
        for store in (*self.keys, *self.values):
            store[to, :, :length] = store[source, :, :length]
