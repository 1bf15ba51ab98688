"""Rows that hold the same tokens are run once, until they say something else.

A *lane* is a slot of the cache in which the rows of one set go on together; one of them, the owner, has this slot. Copies of
a task say the same for long: most of a group's replies share their beginnings, and greedy ones are the same to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Fork(NamedTuple):
    """Rows that need a lane of their own, the owner first; so far they have said what is in the slot of the row ``source``."""

    rows: list[int]
    source: int


class Parting(NamedTuple):
    """What follows when the rows of a lane say unlike things."""

    handed: list[tuple[int, int]]
    """An owner that has ended, and the row that gets its slot."""
    forks: list[Fork]


class Lanes:
    """``rows`` still speak, each in its ``lane`` and there at a ``place``; ``owners[lane]`` is the row whose slot this is.

    ``sources[row]`` leads to the row whose slot holds a row's tokens: itself, or another that has said the same.
    """

    def __init__(self, texts: Sequence[Sequence[int]], cached: Sequence[int]) -> None:
        sets: dict[tuple[int, ...], list[int]] = {}
        for row, text in enumerate(texts):
            sets.setdefault(tuple(text), []).append(row)
        members = [sorted(rows, key=lambda row: (-cached[row], row)) for rows in sets.values()]
        self.owners = [rows[0] for rows in members]
        self.sources = list(range(len(texts)))
        self._set_members(members)

    def _set_members(self, members: Sequence[Sequence[int]]) -> None:
        """Note the members of every lane, its owner first."""
        for rows in members:
            for row in rows:
                self.sources[row] = rows[0]
        counts = np.array([len(rows) for rows in members])
        every = np.array([row for rows in members for row in rows], dtype=np.int64)
        self._tabulate(every, np.repeat(np.arange(len(members)), counts))

    def _tabulate(self, rows: Indices, lane: Indices) -> None:
        """Lay the rows, which are in the order of lanes, lane under lane; what a lane leaves free is filled with row 0."""
        counts = np.bincount(lane, minlength=len(self.owners))
        self.rows, self.lane = rows, lane
        self.place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.table = np.zeros((len(self.owners), int(counts.max(initial=1))), dtype=np.int64)
        self.table[lane, self.place] = rows

    @property
    def live(self) -> list[int]:
        """The lanes in which somebody still speaks."""
        found: list[int] = np.unique(self.lane).tolist()
        return found

    def reorder(self, order: Sequence[int]) -> None:
        """Number the lanes anew: ``order`` are the old numbers of those that stay."""
        new = np.full(len(self.owners), -1)
        new[order] = np.arange(len(order))
        lane = new[self.lane]
        sorting = np.argsort(lane, kind="stable")
        self.owners = [self.owners[old] for old in order]
        self._tabulate(self.rows[sorting], lane[sorting])

    def part(self, said: Indices, ended: NDArray[np.bool_]) -> Parting:
        """Part the rows by what each of them has said; those that have ended leave, and those that fork off wait for ``add``."""
        if self.table.shape[1] == 1:
            if ended.any():
                self._tabulate(self.rows[~ended], self.lane[~ended])
            return Parting([], [])
        parts: dict[tuple[int, int], list[int]] = {}
        for row, lane, token, over in zip(
            *(part.tolist() for part in (self.rows, self.lane, said, ended)), strict=True
        ):
            if not over:
                parts.setdefault((lane, token), []).append(row)
        parting = Parting([], [])
        members: list[list[int]] = [[] for _ in self.owners]
        for (lane, _), rows in parts.items():
            if members[lane]:
                parting.forks.append(Fork(rows, self.owners[lane]))
                continue
            members[lane] = rows
            before, self.owners[lane] = self.owners[lane], rows[0]
            if before != rows[0]:
                parting.handed.append((before, rows[0]))
                self.sources[before] = rows[0]
        self._set_members(members)
        return parting

    def add(self, sets: Sequence[list[int]]) -> None:
        """Give the rows of each set another lane."""
        lanes: list[list[int]] = [[] for _ in self.owners]
        for row, lane in zip(self.rows.tolist(), self.lane.tolist(), strict=True):
            lanes[lane].append(row)
        self.owners += [rows[0] for rows in sets]
        self._set_members([*lanes, *sets])

    def find_source(self, row: int) -> int:
        """Return the row whose slot holds what a row has said."""
        while self.sources[row] != row:
            row = self.sources[row]
        return row
