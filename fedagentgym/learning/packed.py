"""The decoder of Llama's family over packed rows, with gradients: no padding outside of attention, common beginnings once.

The model's own modules do the products, so adapters, biases and autocast act as they do elsewhere; what lies between the modules
is written out. In the last block, queries are computed only where an output is wanted: few of an episode's many tokens are the
agent's choice, and in a small model that is half of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedagentgym.learning.block_operations import gate_with_silu, normalize, rotate
from fedagentgym.learning.packing import Ids, Packed, find_queries, pack

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Architectures whose block is: norm, attention with rotary positions, sum, norm, gated SiLU, sum."""
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles depend on the position alone, not on the length of the text."""


def fits(model: Any) -> bool:
    """Whether the language model (without its adapter's wrapper) is of a kind that is written out here."""
    config: Any = getattr(model, "config", None)
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        getattr(config, "model_type", None) in MODEL_TYPES
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in ROPE_TYPES
        and not config.attention_dropout
        and "sliding_attention" not in (getattr(config, "layer_types", None) or ())
        and (config.model_type != "mistral" or config.sliding_window is None)
    )


def compute_hidden(
    model: Any,
    rows: Sequence[Ids],
    places: Sequence[Ids],
    device: torch.device,
    kept: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The last hidden states, after the final norm, at the given places of each row, one row after the other.

    Of more than `kept` nodes only the blocks' inputs are kept for the backward pass. `bias` is added to the last block's output.
    """
    packed = pack(rows)
    nodes = np.concatenate([path[place] for path, place in zip(packed.paths, places, strict=True)])
    wanted, inverse = np.unique(nodes, return_inverse=True)
    body = model.model
    hidden = body.embed_tokens(_to_index(packed.ids, device))
    cos, sin = body.rotary_emb(hidden, _to_index(packed.positions, device)[None])
    angles = _Angles(cos[0, :, None], sin[0, :, None])
    recompute = kept is not None and len(packed.ids) > kept and torch.is_grad_enabled()
    every, last = _plan_every_node(packed, device), _plan_wanted_nodes(packed, wanted, device)
    for layer in body.layers:
        plan = last if layer is body.layers[-1] else every
        if recompute:
            hidden = checkpoint(_run_block, layer, hidden, angles, plan, use_reentrant=False)
        else:
            hidden = _run_block(layer, hidden, angles, plan)
    if bias is not None:
        hidden = hidden + bias.to(hidden.dtype)
    return _take(normalize(body.norm, hidden), _to_index(inverse, device))


class _Angles(NamedTuple):
    cos: Tensor
    sin: Tensor


class _TablePlan(NamedTuple):
    """The nodes of a table's keys, the indices of its queries, and which keys these see (None: each those up to its own)."""

    keys: Tensor
    queries: Tensor
    seen: Tensor | None


class _Plan(NamedTuple):
    """Attention of a block: its tables; the nodes whose queries are computed and those whose output is (None: all); for each
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


def _run_block(layer: Any, hidden: Tensor, angles: _Angles, plan: _Plan) -> Tensor:
    """One decoder block: the hidden states of all nodes in, those of the plan's outputs out."""
    attention, mlp = layer.self_attn, layer.mlp
    normed = normalize(layer.input_layernorm, hidden)
    asking, turning = normed, angles
    if plan.queried is not None:
        asking, turning = _take(normed, plan.queried), _Angles(angles.cos[plan.queried], angles.sin[plan.queried])
    query = rotate(_project(attention, "q", asking), *turning)
    key, value = rotate(_project(attention, "k", normed), *angles), _project(attention, "v", normed)
    if plan.outputs is not None:
        hidden = _take(hidden, plan.outputs)
    hidden = hidden + attention.o_proj(_attend(query, key, value, plan))
    normed = normalize(layer.post_attention_layernorm, hidden)
    answer: Tensor = hidden + mlp.down_proj(gate_with_silu(mlp.gate_proj(normed), mlp.up_proj(normed)))
    return answer


def _project(attention: Any, name: str, normed: Tensor) -> Tensor:
    """Queries, keys or values: [tokens, heads, width]."""
    vectors: Tensor = getattr(attention, f"{name}_proj")(normed).unflatten(-1, (-1, attention.head_dim))
    norm = getattr(attention, f"{name}_norm", None)
    return vectors if norm is None else normalize(norm, vectors)


def _attend(query: Tensor, key: Tensor, value: Tensor, plan: _Plan) -> Tensor:
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
    return _take(torch.cat(parts), plan.places)


def _look_up(vectors: Tensor, table: Tensor) -> Tensor:
    """The vectors [tokens, heads, width] of a table of tokens: [rows, heads, length, width]."""
    return _take(vectors.flatten(1), table).view(*table.shape, *vectors.shape[1:]).transpose(1, 2)


def _take(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table. Unlike indexing's, the gradient of a look-up is summed row by row, in one order."""
    return F.embedding(index, table)


def _to_index(array: Ids, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
