"""The next token of growing rows, without gradients: the decoder over a cache of keys and values.

It reads the weights of the model (adapters merged on the way) and does the same arithmetic with a third of the operations, and
with less of it: of the last layer only keys and values are computed for all tokens, everything above them for the tokens that
are asked for; long chunks attend in blocks, so that what lies above the diagonal is mostly left out; and where few tokens are
allowed, only their logits are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedagentgym.agents.model.cache import Chunks, KVCache
from fedagentgym.agents.model.layer import Angles, Layer, Separate, compute_angles

_MAX_PACKED_PARAMETERS = 30_000_000
"""Parameters up to which projections of one input are copied into one matrix, adapters merged: fewer operations, but twice the
memory, and a pass over all of it. Larger models read their own weights and add the products with the adapters, which are small;
so do models in bfloat16, whose weights would round an adapter's small changes away."""
_MAX_TOKENS_PER_PASS = 4096
"""Bounds the memory of long prompts, and keeps a small model's work in the processor's cache."""
_QUERY_BLOCK = 64
"""Queries of one row that attend together: what lies above the diagonal is computed within a block only."""


class _Span(NamedTuple):
    """Queries ``start`` to ``stop`` of a pass: those of one row that see its first ``columns`` columns, up to their own."""

    start: int
    stop: int
    slot: int
    columns: int


class _Batch(NamedTuple):
    """One query for each of the first slots, and which columns it sees: [rows * groups, 1, columns], or one number for all."""

    columns: int
    mask: Tensor


class CachedDecoder:
    """``Forward`` on the weights of a model that ``fits``."""

    def __init__(self, model: Any, device: torch.device, slots: KVCache | None = None) -> None:
        """`slots` are those of an earlier decoder of the same model, which no session uses any more."""
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        config, body = causal.config, causal.model
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        size = sum(weight.numel() for weight in model.parameters())
        with torch.no_grad():
            self.embedding = merge_weight(body.embed_tokens)
            self.head = merge_weight(causal.lm_head)
            self.norm = body.norm.weight
            dtype = self.embedding.dtype
            exact = dtype == torch.float32 and device.type == "cpu"
            self.pass_cost = 64 if size <= _MAX_PACKED_PARAMETERS else 16
            packed = size <= _MAX_PACKED_PARAMETERS and (dtype == torch.float32 or causal is model)
            self.normalize = _Normalizer(len(self.norm), config.rms_norm_eps, exact, device)
            self.layers = [merge_layer(layer, self.normalize, packed) for layer in body.layers]
        self.width = self.layers[0].width
        self.rotary = body.rotary_emb
        self.slots = slots or KVCache(len(self.layers), self.groups, self.width, dtype, device)
        self.angles, self.mask = _tabulate_positions(self.rotary, 512, device, dtype)

    @torch.inference_mode()
    def compute_logits(self, chunks: Chunks, choices: Tensor | None = None) -> Tensor:
        if chunks.columns > len(self.angles.cos):
            count, device, dtype = 2 * chunks.columns, self.slots.device, self.embedding.dtype
            self.angles, self.mask = _tabulate_positions(self.rotary, count, device, dtype)
        if len(chunks.ids) <= _MAX_TOKENS_PER_PASS:
            return self._run_pass(chunks, choices)
        parts = chunks.split(_MAX_TOKENS_PER_PASS)
        return torch.cat([self._run_pass(part, None if choices is None else choices[rows]) for rows, part in parts])

    def _run_pass(self, chunks: Chunks, choices: Tensor | None) -> Tensor:
        slots, places = chunks.locate()
        cells, device = self.slots.find_cells(slots, places), self.slots.device
        angles = self.angles.at(torch.from_numpy(places).to(device))
        hidden = F.embedding(torch.from_numpy(chunks.ids).to(device), self.embedding)
        view = self._plan_last(chunks) if chunks.single else _plan_rows(chunks)
        last = None if chunks.single else torch.from_numpy(chunks.ends - 1).to(device)
        for index, layer in enumerate(self.layers):
            wanted = last if layer is self.layers[-1] else None
            if wanted is not None:
                view = self._plan_last(chunks)
            hidden = layer.run(hidden, angles, partial(self._attend, index, cells, view), wanted, wanted)
        states = self.normalize(hidden, self.norm)
        if choices is not None and choices.numel() <= 2 * len(self.head):  # more are cheaper picked out of all logits
            return torch.bmm(self.head[choices], states.unsqueeze(-1)).squeeze(-1)
        logits = F.linear(states, self.head)
        return logits if choices is None else logits.gather(1, choices)

    def _plan_last(self, chunks: Chunks) -> list[_Span] | _Batch:
        """Return what the last token of each row sees: in one batch if the rows stand in front, else row by row."""
        if not chunks.in_front:
            seen = zip(chunks.slots.tolist(), chunks.seen.tolist(), strict=True)
            return [_Span(row, row + 1, slot, columns) for row, (slot, columns) in enumerate(seen)]
        if (chunks.seen == chunks.columns).all():
            return _Batch(chunks.columns, self.mask[:1, None, :1])
        hidden = np.arange(chunks.columns) >= np.repeat(chunks.seen, self.groups)[:, None]
        added = np.where(hidden, np.float32(torch.finfo(self.slots.dtype).min), np.float32(0.0))
        return _Batch(chunks.columns, torch.from_numpy(added).to(self.slots.dtype).to(self.slots.device).unsqueeze(1))

    def _attend(
        self, index: int, cells: Tensor, view: list[_Span] | _Batch, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Store the keys and values of this layer, and let the queries attend to what their rows hold."""
        self.slots.write(index, cells, keys, values)
        held = self.slots.keys[index], self.slots.values[index]
        if isinstance(view, _Batch):  # one query per row: for so little work two products beat the fused kernel
            rows, lines = queries.shape[0], queries.shape[0] * self.groups
            shape = (-1, self.slots.columns, self.width)
            keys, values = (store.view(shape)[:lines, : view.columns] for store in held)
            grouped = queries.reshape(lines, -1, self.width)
            scores = torch.baddbmm(view.mask, grouped, keys.transpose(1, 2), alpha=self.width**-0.5)
            return torch.bmm(torch.softmax(scores, dim=-1), values).view(rows, -1)
        turned, (held_keys, held_values) = queries.transpose(0, 1).unsqueeze(0), held
        reach = self.mask.shape[1]
        found = []
        for start, stop, slot, columns in view:
            count = stop - start
            right = reach - _QUERY_BLOCK + count
            seen = F.scaled_dot_product_attention(
                turned[:, :, start:stop],
                held_keys[slot : slot + 1, :, :columns],
                held_values[slot : slot + 1, :, :columns],
                attn_mask=None if count == 1 else self.mask[:count, right - columns : right],
                enable_gqa=self.groups != self.heads,
            )
            found.append(seen.transpose(1, 2))
        return torch.cat(found, dim=1).view(len(queries), -1)


@lru_cache(maxsize=4)
def _tabulate_positions(rotary: Any, count: int, device: torch.device, dtype: torch.dtype) -> tuple[Angles, Tensor]:
    """Tabulate rotations, and the mask of a block of queries: that of the longest row; a shorter row takes the columns at its
    right end. Sessions follow one another, each with a decoder of its own."""
    angles = compute_angles(rotary, torch.arange(count, device=device), dtype)
    ahead = torch.full((_QUERY_BLOCK, _QUERY_BLOCK), torch.finfo(dtype).min, dtype=dtype, device=device).triu(1)
    return angles, F.pad(ahead, (count, 0))


def merge_layer(layer: Any, norm: _Normalizer, packed: bool) -> Layer:
    """Return a layer that runs its weights, adapters merged; `packed`: projections of one input are one matrix."""
    attention, mlp = layer.self_attn, layer.mlp
    read = _Packed.read if packed else _read_separate
    mixed = read([attention.q_proj, attention.k_proj, attention.v_proj])
    query, key_value = mixed.split_first()
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return Layer(
        width=attention.head_dim,
        input_norm=partial(norm, weight=layer.input_layernorm.weight),
        query_key_value=mixed,
        query=query,
        key_value=key_value,
        query_norm=None if query_norm is None else partial(norm.heads, query_norm.weight.detach()),
        key_norm=None if key_norm is None else partial(norm.heads, key_norm.weight.detach()),
        out=_Projection.read(attention.o_proj, packed),
        mlp_norm=partial(norm, weight=layer.post_attention_layernorm.weight),
        gate_up=read([mlp.gate_proj, mlp.up_proj]),
        down=_Projection.read(mlp.down_proj, packed),
    )


class _Projection(NamedTuple):
    """A projection; with an adapter that is not merged, `low` reads the input and `high` adds to the output."""

    weight: Tensor
    bias: Tensor | None
    low: Tensor | None = None
    high: Tensor | None = None

    @classmethod
    def read(cls, module: Any, merged: bool) -> _Projection:
        plain = module.get_base_layer() if hasattr(module, "get_base_layer") else module
        bias = None if plain.bias is None else plain.bias.detach()
        adapters = [] if merged else list_adapters(module)
        if len(adapters) != 1:
            return cls(merge_weight(module), bias)
        low, high, scale = adapters[0]
        return cls(plain.weight.detach(), bias, low.t(), high.t() * scale)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._adapt(F.linear(hidden, self.weight, self.bias), hidden)

    def add_to(self, states: Tensor, hidden: Tensor) -> Tensor:
        if self.bias is not None:
            states = states + self.bias
        return self._adapt(torch.addmm(states, hidden, self.weight.t()), hidden)

    def _adapt(self, output: Tensor, hidden: Tensor) -> Tensor:
        if self.low is None or self.high is None:
            return output
        inner = hidden.to(self.low.dtype) @ self.low
        if output.dtype == inner.dtype:
            return output.addmm_(inner, self.high)
        return output.add_(inner @ self.high)


class _Packed(NamedTuple):
    """Projections of one input as one matrix; their outputs are views of its own."""

    weight: Tensor
    bias: Tensor | None
    sizes: list[int]

    @classmethod
    def read(cls, modules: Sequence[Any]) -> _Packed:
        parts = [_Projection.read(module, merged=True) for module in modules]
        biases = [part.bias for part in parts if part.bias is not None]
        weight = torch.cat([part.weight for part in parts])
        return cls(weight, torch.cat(biases) if biases else None, [len(part.weight) for part in parts])

    def __call__(self, hidden: Tensor) -> Sequence[Tensor]:
        return torch.split(F.linear(hidden, self.weight, self.bias), self.sizes, -1)

    def split_first(self) -> tuple[_Projection, _Packed]:
        cut, weight, bias = self.sizes[0], self.weight, self.bias
        first = _Projection(weight[:cut], None if bias is None else bias[:cut])
        return first, _Packed(weight[cut:], None if bias is None else bias[cut:], self.sizes[1:])


def _read_separate(modules: Sequence[Any]) -> Separate:
    return Separate([_Projection.read(module, merged=False) for module in modules])


class _Normalizer:
    """The RMSNorm of states. On a CPU in single precision the mean of squares is a matrix product, which takes few rows half
    the library's time."""

    def __init__(self, width: int, epsilon: float, exact: bool, device: torch.device) -> None:
        self.epsilon = epsilon
        self._mean: tuple[Tensor, Tensor] | None = None
        if exact:
            self._mean = torch.full((1,), epsilon, device=device), torch.full((width, 1), 1 / width, device=device)

    def __call__(self, hidden: Tensor, weight: Tensor) -> Tensor:
        if self._mean is None:
            return F.rms_norm(hidden, weight.shape, weight, self.epsilon)
        epsilon, column = self._mean
        return torch.addmm(epsilon, hidden * hidden, column).rsqrt_().mul(hidden).mul_(weight)

    def heads(self, weight: Tensor, vectors: Tensor) -> Tensor:
        """The norm of every query or key head."""
        return F.rms_norm(vectors, weight.shape, None, self.epsilon) * weight


def list_adapters(module: Any) -> list[tuple[Tensor, Tensor, float]]:
    """Return the matrices and the scale of a linear module's active adapters that are not merged into its weight."""
    if not hasattr(module, "lora_A") or module.merged:
        return []
    return [
        (module.lora_A[name].weight.detach(), module.lora_B[name].weight.detach(), module.scaling[name])
        for name in module.active_adapters
        if name in module.lora_A
    ]


def merge_weight(module: Any) -> Tensor:
    """Return a linear (or embedding) module's weight with its adapters added; the module is left alone."""
    plain = module.get_base_layer() if hasattr(module, "get_base_layer") else module
    weight: Tensor = plain.weight.detach()
    for low, high, scale in list_adapters(module):
        if weight.dtype == low.dtype:
            weight = torch.addmm(weight, high, low, alpha=scale)
        else:
            weight = weight + ((high @ low) * scale).to(weight.dtype)
    return weight


def _plan_rows(chunks: Chunks) -> list[_Span]:
    """Return the cached tokens that each row's queries attend to, block by block; the short block is a row's first."""
    spans = []
    rows = zip(chunks.ends.tolist(), chunks.lengths.tolist(), chunks.slots.tolist(), chunks.seen.tolist(), strict=True)
    for end, length, slot, seen in rows:
        first = end - length + (length - 1) % _QUERY_BLOCK + 1
        edges = [end - length, *range(first, end + 1, _QUERY_BLOCK)]
        spans += [_Span(start, stop, slot, seen - (end - stop)) for start, stop in pairwise(edges)]
    return spans
