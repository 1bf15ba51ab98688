"""States of packed rows, with gradients: no padding outside of attention, common beginnings once.

Rows are packed into a tree of tokens (`packing`), through which the model's own modules run, layer by layer. In the last layer
queries are computed only where an output is wanted: few of an episode's many tokens are the agent's choice, and in a small
model that is half of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedagentgym.agents.decoder.layer import ModuleLayer, compute_angles, normalize, run_layer, take
from fedagentgym.agents.decoder.packing import Ids, Packed, find_queries, pack


def compute_hidden(
    model: Any,
    rows: Sequence[Ids],
    places: Sequence[Ids],
    device: torch.device,
    kept: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the last hidden states, after the final norm, at the given places of each row, one row after the other.

    Of more than `kept` nodes only the layers' inputs are kept for the backward pass. `bias` is added to the last layer's output.
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
    return take(normalize(model.model.norm, hidden), _to_index(inverse, device))


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
    if (
        sum(
            2 * part.indices.size * table.keys.shape[1] - table.keys.size * table.keys.shape[1] for table, part in found
        )
        > 0
    ):
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
        steps = (ModuleLayer(layer), hidden, angles, partial(_attend, plan), plan.queried, plan.outputs)
        hidden = checkpoint(run_layer, *steps, use_reentrant=False) if recompute else run_layer(*steps)
    found: Tensor = hidden
    return found


def _attend(plan: _Plan, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention table by table; its outputs in the plan's order: [outputs, heads * width]."""
    parts = []
    for table in plan.tables:
        queries, keys, values = _look_up(query, table.queries), _look_up(key, table.keys), _look_up(value, table.keys)
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


def _look_up(vectors: Tensor, table: Tensor) -> Tensor:
    """The vectors [tokens, heads, width] of a table of tokens: [rows, heads, length, width]."""
    return take(vectors.flatten(1), table).view(*table.shape, *vectors.shape[1:]).transpose(1, 2)


def _to_index(array: Ids, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
