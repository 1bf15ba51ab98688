"""The decoder over a key-value cache, without gradients: it computes the next token of growing rows.

It uses the weights of the model, with adapters merged unless rounding would lose them, and does the same arithmetic in a third
of the calls. It also skips unneeded work. The last layer computes keys and values of all tokens, but everything else only for
the last token of each row. Long chunks attend in blocks, which skips most scores above the diagonal. Where few tokens are
allowed, only their logits are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedagentgym.agents.model.cache import Chunks, KVCache
from fedagentgym.agents.model.layer import Angles, Layer, Linear, Separate, compute_angles

_MAX_PACKED_PARAMETERS = 30_000_000
"""Models of at most this many parameters copy projections of one input into one matrix, with adapters merged. This takes fewer
operations, but twice the memory and a pass over all weights. Larger models use their own weights and add the small products with
the adapters. So do adapted models in bfloat16, in which merging would round an adapter's small changes away."""
_MAX_TOKENS_PER_PASS = 4096
"""Limits the memory of long prompts, and keeps a small model's work in the processor's cache."""
_QUERY_BLOCK = 64
"""Queries of one row that attend together. Scores above the diagonal are computed only within such a block."""


class _Span(NamedTuple):
    """Queries `start` to `stop` of a pass, all of the row in `slot`. The last of them sees the first `columns` columns."""

    start: int
    stop: int
    slot: int
    columns: int


class _Batch(NamedTuple):
    """One query for each of the first slots. `mask` [rows * groups, 1, columns] is added to the scores; it may be one number."""

    columns: int
    mask: Tensor


class CachedDecoder:
    """Implements `Forward` with the weights of a model for which `fits` is true."""

    def __init__(
        self, model: Any, device: torch.device, slots: KVCache | None = None, adapters: AdapterBatch | None = None
    ) -> None:
        """`slots` may be the cache of an earlier decoder of the same model, if no session uses that cache any more. With
        `adapters`, every row uses one adapter of this batch in place of the model's own."""
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        config, body = causal.config, causal.model
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        size = sum(weight.numel() for weight in model.parameters())
        with torch.no_grad():
            self.embedding = merge_weight(body.embed_tokens)
            self.norm = body.norm.weight
            dtype = self.embedding.dtype
            self.head = _Projection.read(causal.lm_head, merged=keeps_changes(dtype))
            exact = dtype == torch.float32 and device.type == "cpu"
            self.pass_cost = 64 if size <= _MAX_PACKED_PARAMETERS else 16
            packed = size <= _MAX_PACKED_PARAMETERS and (keeps_changes(dtype) or causal is model)
            self.normalize = _Normalizer(len(self.norm), config.rms_norm_eps, exact, device)
            self.layers = [merge_layer(layer, self.normalize, packed, adapters) for layer in body.layers]
        self.adapters = adapters
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
        if self.adapters is not None:
            self.adapters.place(chunks)
        view = self._plan_last(chunks) if chunks.single else _plan_rows(chunks)
        last = None if chunks.single else torch.from_numpy(chunks.ends - 1).to(device)
        for index, layer in enumerate(self.layers):
            wanted = last if layer is self.layers[-1] else None
            if wanted is not None:
                view = self._plan_last(chunks)
            hidden = layer.run(hidden, angles, partial(self._attend, index, cells, view), wanted, wanted)
        states = self.normalize(hidden, self.norm)
        head = self.head.weight
        if choices is not None and self.head.low is None and choices.numel() <= 2 * len(head):
            return torch.bmm(head[choices], states.unsqueeze(-1)).squeeze(-1)
        logits = self.head(states)  # more choices are cheaper picked out of all logits
        return logits if choices is None else logits.gather(1, choices)

    def _plan_last(self, chunks: Chunks) -> list[_Span] | _Batch:
        """Plan the attention of each row's last token. Returns one batch if the rows are in the first slots, else spans."""
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
        """Store the keys and values of this layer, and let the queries attend to the cached tokens of their rows."""
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
    """Return the rotations of `count` positions, and the mask of a block of queries in the longest row.

    Shorter rows take columns at the right end of the mask. The result is cached, since every session makes its own decoder.
    """
    angles = compute_angles(rotary, torch.arange(count, device=device), dtype)
    ahead = torch.full((_QUERY_BLOCK, _QUERY_BLOCK), torch.finfo(dtype).min, dtype=dtype, device=device).triu(1)
    return angles, F.pad(ahead, (count, 0))


def merge_layer(layer: Any, norm: _Normalizer, packed: bool, adapters: AdapterBatch | None = None) -> Layer:
    """Return a layer that computes with the weights of a module. With `packed`, projections of one input become one matrix, and
    adapters are merged; `adapters` are used in place of the module's own."""
    attention, mlp = layer.self_attn, layer.mlp
    read: Callable[[Sequence[Any]], Any] = _Packed.read if packed else _read_separate
    read_one: Callable[[Any], Linear] = partial(_Projection.read, merged=packed)
    if adapters is not None:
        read = partial(_Adapted.read, batch=adapters, packed=packed)
        read_one = partial(_AdaptedOne.read, batch=adapters)
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
        out=read_one(attention.o_proj),
        mlp_norm=partial(norm, weight=layer.post_attention_layernorm.weight),
        gate_up=read([mlp.gate_proj, mlp.up_proj]),
        down=read_one(mlp.down_proj),
    )


class _Projection(NamedTuple):
    """A projection. If it has an adapter that is not merged, `low` and `high` are the adapter's two factors."""

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
    """Projections of one input, computed as one matrix. The outputs are views of one tensor."""

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


# ---- a batch of several adapters -----------------------------------------------------------------------------------------


class AdapterBatch:
    """The low-rank adapters of several learners on one frozen model. Each row of a pass uses one of them.

    The factors of all adapters are concatenated. The product of the states with all first factors has `count * rank` numbers for
    each token. The numbers of the other adapters are set to zero, and the product with all second factors is added to the output.
    For a few tokens per row this is less work than sorting them by adapter. Long stretches of tokens with the same adapter are
    multiplied with its factors alone.

    Args:
        count: The most adapters that it can hold.
        rank: The rank of all adapters.
        device: The device of the factors.
    """

    def __init__(self, count: int, rank: int, device: torch.device) -> None:
        self.count, self.rank, self.device = count, rank, device
        self._places: list[tuple[Any, Tensor, Tensor]] = []
        """Each adapted module with views of its factors: [input, adapters, rank] and [adapters, rank, output]."""
        self._others: dict[int, Tensor] = {}
        self._stretches: dict[int, list[tuple[int, int, int]] | None] = {}

    def stack(self, modules: Sequence[Any]) -> tuple[Tensor, list[Tensor]]:
        """Allocate factors for modules with one input. Returns all first factors as one matrix, and the second ones by module."""
        width, inner = modules[0].get_base_layer().weight.shape[1], self.count * self.rank
        kind = list_adapters(modules[0])[0][0].dtype
        low = torch.zeros(width, len(modules) * inner, dtype=kind, device=self.device)
        highs = []
        for number, module in enumerate(modules):
            outputs = module.get_base_layer().weight.shape[0]
            high = torch.zeros(inner, outputs, dtype=kind, device=self.device)
            part = low[:, number * inner : (number + 1) * inner].view(width, self.count, self.rank)
            self._places.append((module, part, high.view(self.count, self.rank, outputs)))
            highs.append(high)
        return low, highs

    @torch.no_grad()
    def load(self, adapter: int) -> bool:
        """Copy the model's present adapter to number `adapter`.

        Returns False, without copying, if one of its numbers is not finite, since that would spoil other rows of a batch."""
        factors = [list_adapters(module)[0] for module, _, _ in self._places]
        if not all(bool(torch.isfinite(part).all()) for low, high, _ in factors for part in (low, high)):
            return False
        for (_, lows, highs), (low, high, scale) in zip(self._places, factors, strict=True):
            lows[:, adapter] = low.t()
            highs[adapter] = high.t() * scale
        return True

    def place(self, chunks: Chunks) -> None:
        """Note the adapters of all tokens of a pass, and of the rows' last tokens, with which alone the last layer ends."""
        rows = np.zeros(len(chunks.slots), dtype=np.int64) if chunks.adapters is None else chunks.adapters
        self._others, self._stretches = {}, {}
        for tokens in (np.repeat(rows, chunks.lengths), rows):
            edges = [0, *(np.flatnonzero(np.diff(tokens)) + 1).tolist(), len(tokens)]
            stretches = [(start, stop, int(tokens[start])) for start, stop in pairwise(edges)]
            if len(tokens) >= _LONG_STRETCH * len(stretches) or len(stretches) == 1:
                self._stretches[len(tokens)] = stretches
                continue
            self._stretches[len(tokens)] = None
            others = torch.from_numpy(tokens[:, None] != np.arange(self.count)).to(self.device)
            self._others[len(tokens)] = others.repeat_interleave(self.rank, 1).unsqueeze(1)

    def add(self, outputs: Sequence[Tensor], hidden: Tensor, low: Tensor, highs: Sequence[Tensor]) -> None:
        """Add the adapter's product of each token to the outputs of some modules."""
        stretches, hidden = self._stretches[len(hidden)], hidden.to(low.dtype)
        if stretches is None:
            inner = (hidden @ low).view(len(hidden), len(highs), -1)
            inner.masked_fill_(self._others[len(hidden)], 0.0)
            for number, (output, high) in enumerate(zip(outputs, highs, strict=True)):
                _add_product(output, inner[:, number], high)
            return
        width = self.count * self.rank
        for start, stop, adapter in stretches:
            for number, (output, high) in enumerate(zip(outputs, highs, strict=True)):
                first = adapter * self.rank
                factor = low[:, number * width + first : number * width + first + self.rank]
                _add_product(output[start:stop], hidden[start:stop] @ factor, high[first : first + self.rank])


_LONG_STRETCH = 32
"""If stretches have at least this many tokens on average, each stretch is multiplied separately."""


def _add_product(output: Tensor, inner: Tensor, high: Tensor) -> None:
    if output.dtype == inner.dtype:
        output.addmm_(inner, high)
    else:
        output.add_(inner @ high)


class _Adapted(NamedTuple):
    """Projections of one input with the adapters of a batch. `weights` holds a matrix for each projection, or one matrix for all;
    `adapted` lists the projections that have adapters."""

    weights: list[tuple[Tensor, Tensor | None]]
    sizes: list[int]
    batch: AdapterBatch
    adapted: list[int]
    low: Tensor | None
    highs: list[Tensor]

    @classmethod
    def read(cls, modules: Sequence[Any], batch: AdapterBatch, packed: bool) -> _Adapted:
        weights = [_read_base(module) for module in modules]
        sizes = [len(weight) for weight, _ in weights]
        if packed and len(weights) > 1:
            biases = [bias for _, bias in weights if bias is not None]
            weights = [(torch.cat([weight for weight, _ in weights]), torch.cat(biases) if biases else None)]
        adapted = [number for number, module in enumerate(modules) if list_adapters(module)]
        low, highs = batch.stack([modules[number] for number in adapted]) if adapted else (None, [])
        return cls(weights, sizes, batch, adapted, low, highs)

    def __call__(self, hidden: Tensor) -> Sequence[Tensor]:
        outputs = [F.linear(hidden, weight, bias) for weight, bias in self.weights]
        if len(outputs) < len(self.sizes):
            outputs = list(torch.split(outputs[0], self.sizes, -1))
        if self.low is not None:
            self.batch.add([outputs[number] for number in self.adapted], hidden, self.low, self.highs)
        return outputs

    def split_first(self) -> tuple[Linear, _Adapted]:
        weights = self.weights
        if len(weights) < len(self.sizes):
            ((weight, bias),) = weights
            biases = [None] * len(self.sizes) if bias is None else torch.split(bias, self.sizes)
            parts = torch.split(weight, self.sizes), biases
            weights = list(zip(*parts, strict=True))
        cut = self.highs[0].shape[0] if 0 in self.adapted else 0
        low, rest = (None, None) if self.low is None else (self.low[:, :cut], self.low[:, cut:])
        first = _AdaptedOne(*weights[0], self.batch, low if cut else None, self.highs[:1] if cut else [])
        kept = [number - 1 for number in self.adapted if number]
        highs = self.highs[1:] if cut else self.highs
        return first, _Adapted(weights[1:], self.sizes[1:], self.batch, kept, rest if kept else None, highs)


class _AdaptedOne(NamedTuple):
    """A projection with the adapters of a batch."""

    weight: Tensor
    bias: Tensor | None
    batch: AdapterBatch
    low: Tensor | None
    highs: list[Tensor]

    @classmethod
    def read(cls, module: Any, batch: AdapterBatch) -> _AdaptedOne:
        low, highs = batch.stack([module]) if list_adapters(module) else (None, [])
        return cls(*_read_base(module), batch, low, highs)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._adapt(F.linear(hidden, self.weight, self.bias), hidden)

    def add_to(self, states: Tensor, hidden: Tensor) -> Tensor:
        if self.bias is not None:
            states = states + self.bias
        return self._adapt(torch.addmm(states, hidden, self.weight.t()), hidden)

    def _adapt(self, output: Tensor, hidden: Tensor) -> Tensor:
        if self.low is not None:
            self.batch.add([output], hidden, self.low, self.highs)
        return output


def _read_base(module: Any) -> tuple[Tensor, Tensor | None]:
    plain = module.get_base_layer() if hasattr(module, "get_base_layer") else module
    return plain.weight.detach(), None if plain.bias is None else plain.bias.detach()


# ---- norms and weights ---------------------------------------------------------------------------------------------------


class _Normalizer:
    """The RMSNorm of states. On a CPU in single precision the mean of squares is computed as a matrix product, which for few
    rows takes half the time of torch's own norm."""

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
        """Normalize every query or key head."""
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


def keeps_changes(dtype: torch.dtype) -> bool:
    """Return whether small changes can be added to weights of this type; bfloat16 would round most of them away."""
    return dtype.itemsize >= 4


def merge_weight(module: Any) -> Tensor:
    """Return a linear (or embedding) module's weight with its adapters added, rounded once; the module is not changed."""
    plain = module.get_base_layer() if hasattr(module, "get_base_layer") else module
    weight: Tensor = plain.weight.detach()
    stored, adapters = weight.dtype, list_adapters(module)
    if adapters and not keeps_changes(stored):
        weight = weight.float()
    for low, high, scale in adapters:
        weight = torch.addmm(weight, high.to(weight.dtype), low.to(weight.dtype), alpha=scale)
    return weight.to(stored)


def _plan_rows(chunks: Chunks) -> list[_Span]:
    """Return the spans of all rows: blocks of `_QUERY_BLOCK` queries, of which the first of a row may be shorter."""
    spans = []
    rows = zip(chunks.ends.tolist(), chunks.lengths.tolist(), chunks.slots.tolist(), chunks.seen.tolist(), strict=True)
    for end, length, slot, seen in rows:
        first = end - length + (length - 1) % _QUERY_BLOCK + 1
        edges = [end - length, *range(first, end + 1, _QUERY_BLOCK)]
        spans += [_Span(start, stop, slot, seen - (end - stop)) for start, stop in pairwise(edges)]
    return spans
