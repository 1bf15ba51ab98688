"""Rows of tokens without padding, with common prefixes held once.

Rows in lexicographic order form a tree: a row shares its prefix with the previous row, and only the rest is new. A token of that
tree is a *node*; everything that a model computes per token is computed for nodes. Attention needs rows, so rows of similar
length are combined into tables, whose entries are nodes, with little padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

PADDING = 0.1
"""Share of a table that may be padding..."""
SMALL_TABLE = 1 << 14
"""... beyond this many pairs of a query and a key, which cost less than another table."""


class RowTable(NamedTuple):
    """Some rows for attention. `keys` [rows, length] are nodes; `nodes` are those that occur here first, at `places` of the
    flattened table: each node is in one table's `nodes`."""

    keys: Ids
    nodes: Ids
    places: Ids


class Queries(NamedTuple):
    """For one table, the nodes whose attention is needed: `indices` [rows, queries] count the wanted nodes, `positions` are
    their positions in their rows, `wanted` are the indices in order and `places` their places in the flattened array."""

    indices: Ids
    positions: Ids
    wanted: Ids
    places: Ids


class Packed(NamedTuple):
    """The tree of some rows: token and position of each node, and for each row, in the order given, its nodes."""

    ids: Ids
    positions: Ids
    paths: list[Ids]
    tables: list[RowTable]


def sort_rows(rows: Sequence[Ids]) -> list[int]:
    """Indices of the rows in lexicographic order: rows with a common prefix are neighbours."""
    keys = [row.astype(">u4").tobytes() for row in rows]
    return sorted(range(len(rows)), key=lambda index: (keys[index], index))


def count_shared(one: Ids, other: Ids) -> int:
    """The length of the common prefix of two rows."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def batch_by_nodes(rows: Sequence[Ids], most: int) -> list[list[int]]:
    """Indices of rows, neighbours in lexicographic order, whose tree has at most `most` nodes (a single row may have more).

    >>> batch_by_nodes([np.array(row) for row in ([1, 2, 3, 4], [9, 9], [1, 2, 3, 5])], 5)
    [[0, 2], [1]]
    """
    batches: list[list[int]] = []
    size = 0
    for index in sort_rows(rows):
        row = rows[index]
        more = len(row) - count_shared(rows[batches[-1][-1]], row) if batches else 0
        if not batches or size + more > most:
            batches.append([])
            size, more = 0, len(row)
        batches[-1].append(index)
        size += more
    return batches


def pack(rows: Sequence[Ids]) -> Packed:
    """The tree of rows that have at least one token each."""
    paths: list[Ids] = [np.zeros(0, dtype=np.int64)] * len(rows)
    parts: list[Ids] = []
    firsts = [0] * len(rows)
    size, before = 0, -1
    for index in sort_rows(rows):
        row = rows[index]
        shared = count_shared(rows[before], row) if before >= 0 else 0
        new = np.arange(size, size + len(row) - shared)
        paths[index] = np.concatenate([paths[before][:shared], new]) if shared else new
        parts.append(row[shared:])
        firsts[index], before, size = shared, index, size + len(new)
    positions = np.zeros(size, dtype=np.int64)
    for path, first in zip(paths, firsts, strict=True):
        positions[path[first:]] = np.arange(first, len(path))
    return Packed(np.concatenate(parts), positions, paths, _make_tables(paths, firsts))


def _make_tables(paths: Sequence[Ids], firsts: Sequence[int]) -> list[RowTable]:
    """Tables of rows of similar length; a row without a node of its own is in none, since it needs no output."""
    chosen = [index for index in range(len(paths)) if firsts[index] < len(paths[index])]
    chosen.sort(key=lambda index: (len(paths[index]), index))
    tables: list[list[int]] = []
    area = 0
    for index in chosen:
        square = len(paths[index]) ** 2
        padded = (len(tables[-1]) + 1) * square if tables else 0
        if not tables or padded - area - square > max(SMALL_TABLE, PADDING * padded):
            tables.append([])
            area = 0
        tables[-1].append(index)
        area += square
    return [_make_table([paths[index] for index in table], [firsts[index] for index in table]) for table in tables]


def _make_table(paths: Sequence[Ids], firsts: Sequence[int]) -> RowTable:
    keys = np.zeros((len(paths), max(map(len, paths))), dtype=np.int64)
    new = np.zeros(keys.shape, dtype=np.bool_)
    for row, (path, first) in enumerate(zip(paths, firsts, strict=True)):
        keys[row, : len(path)] = path
        new[row, first : len(path)] = True
    return RowTable(keys, keys[new], np.flatnonzero(new))


def find_queries(table: RowTable, wanted: Ids) -> Queries:
    """Those of the `wanted` nodes (sorted) that occur first in this table."""
    found = np.isin(table.nodes, wanted)
    row, position = np.divmod(table.places[found], table.keys.shape[1])
    counts = np.bincount(row, minlength=len(table.keys))
    inside = np.arange(max(1, int(counts.max(initial=0))))[None, :] < counts[:, None]
    indices, positions = np.zeros(inside.shape, dtype=np.int64), np.zeros(inside.shape, dtype=np.int64)
    indices[inside] = np.searchsorted(wanted, table.nodes[found])
    positions[inside] = position
    return Queries(indices, positions, indices[inside], np.flatnonzero(inside))
