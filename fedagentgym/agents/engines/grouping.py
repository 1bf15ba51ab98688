"""Which rows go through the model together: like lengths, so that little is padding; rows that hold the same, as one.

A *lane* is a slot of the cache for rows with the same tokens so far; one of them, the owner, has this slot. Copies of a task are
equal for long: most of a group's replies share their beginnings, and greedy ones are the same throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

PASS_COST = 64
"""The cost of another pass, counted in tokens."""
MAX_TOKENS_PER_PASS = 32_768
"""Tokens (padding included) in one pass: bounds the memory of long prompts."""


def group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Split indices into groups, each run as a rectangle of its longest length, at the least cost of padding and passes."""
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    groups = []
    for start, stop in _cut(sorted(by_length), {length: len(found) for length, found in by_length.items()}):
        members = sorted(index for length in sorted(by_length)[start:stop] for index in by_length[length])
        groups += _split(members, max(lengths[index] for index in members))
    return groups


def _cut(distinct: list[int], counts: dict[int, int]) -> list[tuple[int, int]]:
    """Cut sorted lengths into runs: for every end the cheapest last run, given the cheapest cut of what stands before it."""
    best = [0] + [1 << 60] * len(distinct)
    begins = [0] * (len(distinct) + 1)
    for stop in range(1, len(distinct) + 1):
        rows, longest = 0, distinct[stop - 1]
        for start in range(stop - 1, -1, -1):
            rows += counts[distinct[start]]
            cost = best[start] + rows * longest + PASS_COST
            if cost < best[stop]:
                best[stop], begins[stop] = cost, start
    runs = []
    stop = len(distinct)
    while stop:
        runs.append((begins[stop], stop))
        stop = begins[stop]
    return runs[::-1]


def _split(members: list[int], longest: int) -> list[list[int]]:
    """Share members out evenly over as few passes as the limit permits."""
    most = max(1, MAX_TOKENS_PER_PASS // longest)
    passes = -(-len(members) // most)
    size = -(-len(members) // passes)
    return [members[start : start + size] for start in range(0, len(members), size)]


class Fork(NamedTuple):
    """Rows that need a lane of their own, the owner first; so far they have the tokens in the slot of the row ``source``."""

    rows: list[int]
    source: int


class Parting(NamedTuple):
    """What follows when the rows of a lane differ."""

    handed: list[tuple[int, int]]
    """An owner that has ended, and the row that gets its slot."""
    forks: list[Fork]


class Lanes:
    """``rows`` are still generating, each in its ``lane`` at a ``place``; ``owners[lane]`` is the row with this slot.

    ``sources[row]`` leads to the row whose slot holds a row's tokens: itself, or another with the same tokens.
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
        """The lanes with rows that are still generating."""
        found: list[int] = np.unique(self.lane).tolist()
        return found

    def reorder(self, order: Sequence[int]) -> None:
        """Renumber the lanes: ``order`` are the old numbers of those that stay."""
        new = np.full(len(self.owners), -1)
        new[order] = np.arange(len(order))
        lane = new[self.lane]
        sorting = np.argsort(lane, kind="stable")
        self.owners = [self.owners[old] for old in order]
        self._tabulate(self.rows[sorting], lane[sorting])

    def part(self, said: Indices, ended: NDArray[np.bool_]) -> Parting:
        """Split the rows by their tokens; finished rows leave, and diverging ones wait for ``add``."""
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
        """Return the row whose slot holds a row's tokens."""
        while self.sources[row] != row:
            row = self.sources[row]
        return row
