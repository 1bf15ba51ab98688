"""States of packed rows, with gradients: no padding outside of attention, common beginnings once.

Rows in lexicographic order form a tree: a row shares its prefix with the previous row, and only the rest is new. A token of that
tree is a *node*; everything that a model computes per token is computed for nodes. Attention needs rows, so rows of similar
length are combined into tables, whose entries are nodes, with little padding.

The model's own modules run over the nodes, layer by layer. In the last layer queries are computed only where an output is wanted:
few of an episode's many tokens are the agent's choice, and in a small model that is half of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedagentgym.agents.model.layer import compute_angles, normalize, read_layer, take

Ids = NDArray[np.int64]

PADDING = 0.1
"""The largest share of padding in a table; padding of up to `SMALL_TABLE` pairs is always accepted."""
SMALL_TABLE = 1 << 14
"""Pairs of a query and a key that cost less than another table."""


# ---- the pass ----------------------------------------------------------------------------------------------------------


def compute_hidden(
    model: Any,
    rows: Sequence[Ids],
    places: Sequence[Ids],
    device: torch.device,
    kept: int | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Ids]:
    """Return last hidden states, after the final norm, and for the given places of each row, one row after the other, the index
    of their state. Places in a common beginning of rows share one state.

    For more than `kept` nodes only the layers' inputs are kept for the backward pass. `bias` is added to the last layer's output.
    """
    packed = pack(rows)
    nodes = np.concatenate([path[place] for path, place in zip(packed.paths, places, strict=True)])
    wanted, inverse = np.unique(nodes, return_inverse=True)
    every, last = _plan_every_node(packed, device), _plan_wanted_nodes(packed, wanted, device)
    recompute = kept is not None and len(packed.ids) > kept and torch.is_grad_enabled()
    ids, positions = _to_index(packed.ids, device), _to_index(packed.positions, device)
    hidden = _run_layers(model.model, ids, positions, every, last, recompute)
    if bias is not None:
        hidden = hidden + bias.to(hidden.dtype)
    return normalize(model.model.norm, hidden), inverse


def compute_table_hidden(body: Any, ids: Tensor) -> Tensor:
    """Return the last hidden states of all tokens of a table [rows, length], whose rows may be padded on the right."""
    keys = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
    plan = _Plan([_TablePlan(keys, keys, None)], None, None, keys.flatten())
    positions = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids))
    return normalize(body.norm, _run_layers(body, ids.flatten(), positions, plan, plan)).view(*ids.shape, -1)


class _TablePlan(NamedTuple):
    """The nodes of a table's keys, the indices of its queries, and which keys these see (None: each those up to its own)."""

    keys: Tensor
    queries: Tensor
    seen: Tensor | None


class _Plan(NamedTuple):
    """Attention of a layer: its tables; the nodes whose queries are computed and those whose output is (None: all); for each
    output, its place in the tables' results, laid end to end."""

    tables: list[_TablePlan]
    queried: Tensor | None
    outputs: Tensor | None
    places: Tensor


def _plan_every_node(packed: Packed, device: torch.device) -> _Plan:
    places, before = np.zeros(len(packed.ids), dtype=np.int64), 0
    tables = []
    for table in packed.tables:
        keys = _to_index(table.keys, device)
        tables.append(_TablePlan(keys, keys, None))
        places[table.nodes] = before + table.places
        before += table.keys.size
    return _Plan(tables, None, None, _to_index(places, device))


def _plan_wanted_nodes(packed: Packed, wanted: Ids, device: torch.device) -> _Plan:
    """Queries where they are wanted; or all of them, if that is less work, as rows that end alike need no mask."""
    found = [(table, find_queries(table, wanted)) for table in packed.tables]
    outputs = _to_index(wanted, device)
    if sum((2 * part.indices.size - table.keys.size) * table.keys.shape[1] for table, part in found) > 0:
        every = _plan_every_node(packed, device)
        return _Plan(every.tables, None, outputs, every.places[outputs])
    places, before = np.zeros(len(wanted), dtype=np.int64), 0
    tables = []
    for table, part in found:
        columns = np.arange(table.keys.shape[1])
        seen = torch.from_numpy(columns <= part.positions[:, None, :, None]).to(device)
        tables.append(_TablePlan(_to_index(table.keys, device), _to_index(part.indices, device), seen))
        places[part.wanted] = before + part.places
        before += part.indices.size
    return _Plan(tables, outputs, outputs, _to_index(places, device))


def _run_layers(
    body: Any, ids: Tensor, positions: Tensor, every: _Plan, last: _Plan, recompute: bool = False
) -> Tensor:
    """Run all layers, the last one by a plan of its own."""
    hidden = body.embed_tokens(ids)
    angles = compute_angles(body.rotary_emb, positions, hidden.dtype)
    for layer in body.layers:
        plan = last if layer is body.layers[-1] else every
        run, inputs = read_layer(layer).run, (hidden, angles, partial(_attend, plan), plan.queried, plan.outputs)
        hidden = checkpoint(run, *inputs, use_reentrant=False) if recompute else run(*inputs)
    found: Tensor = hidden
    return found


def _attend(plan: _Plan, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention table by table; its outputs in the plan's order: [outputs, heads * width]."""
    parts = []
    for table in plan.tables:
        # each [rows, heads, length, width]
        queries, keys, values = (
            take(vectors.flatten(1), index).view(*index.shape, *vectors.shape[1:]).transpose(1, 2)
            for vectors, index in ((query, table.queries), (key, table.keys), (value, table.keys))
        )
        answer = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=table.seen,
            is_causal=table.seen is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        parts.append(answer.transpose(1, 2).flatten(2).flatten(0, 1))
    return take(torch.cat(parts), plan.places)


def _to_index(array: Ids, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


# ---- the tree ----------------------------------------------------------------------------------------------------------


class RowTable(NamedTuple):
    """Some rows for attention. `keys` [rows, length] are nodes; `nodes` are those that occur here first, at `places` of the
    flattened table: each node is in one table's `nodes`."""

    keys: Ids
    nodes: Ids
    places: Ids


class Queries(NamedTuple):
    """The nodes of one table whose attention is needed: `indices` [rows, queries] point into the wanted nodes, `positions` are
    their positions in their rows; `wanted` lists the indices without padding, and `places` where they are in the flat array."""

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
    # rows of similar length are a table; a row without a node of its own is in none, since it needs no output
    chosen = [index for index in range(len(paths)) if firsts[index] < len(paths[index])]
    chosen.sort(key=lambda index: (len(paths[index]), index))
    sets: list[list[int]] = []
    area = 0
    for index in chosen:
        square = len(paths[index]) ** 2
        padded = (len(sets[-1]) + 1) * square if sets else 0
        if not sets or padded - area - square > max(SMALL_TABLE, PADDING * padded):
            sets.append([])
            area = 0
        sets[-1].append(index)
        area += square
    tables = []
    for members in sets:
        keys = np.zeros((len(members), len(paths[members[-1]])), dtype=np.int64)
        new = np.zeros(keys.shape, dtype=np.bool_)
        for line, index in enumerate(members):
            keys[line, : len(paths[index])] = paths[index]
            new[line, firsts[index] : len(paths[index])] = True
        tables.append(RowTable(keys, keys[new], np.flatnonzero(new)))
    return Packed(np.concatenate(parts), positions, paths, tables)


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
