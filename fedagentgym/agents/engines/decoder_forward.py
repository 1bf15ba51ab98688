"""A lean forward pass for the common decoders: Qwen2, Qwen3, Llama, and Mistral without its window.

It reads the weights of the Hugging Face model (adapters merged on the way) and does the same arithmetic with a third of the
operations, and with less of it: of the last layer only keys and values are computed for all tokens, everything above them for
the tokens that are asked for; long chunks attend in blocks, so that what lies above the diagonal is mostly left out; and where
few tokens are allowed, only their logits are computed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedagentgym.agents.engines.lora import compute_effective_weight
from fedagentgym.agents.engines.slots import Chunks, Integers, KVCache

_MODEL_TYPES = ("qwen2", "qwen3", "llama", "mistral")
_FIXED_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of the text."""
_MAX_PACKED_PARAMETERS = 30_000_000
"""Parameters up to which projections of one input are copied into one matrix: fewer operations, but twice the memory."""
_MAX_TOKENS_PER_PASS = 4096
"""Bounds the memory of long prompts, and keeps a small model's work in the processor's cache."""
_QUERY_BLOCK = 64
"""Queries of one row that attend together: what lies above the diagonal is computed within a block only."""


class _Linear(NamedTuple):
    """One or several projections of the same input; their outputs stand side by side."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    def __call__(self, hidden: Tensor) -> Tensor:
        parts = [F.linear(hidden, weight, bias) for weight, bias in zip(self.weights, self.biases, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class _Layer(NamedTuple):
    """The weights of a decoder layer. ``head_norms`` are Qwen3's, for each query and key head."""

    norm: Tensor
    mix: _Linear
    queries: _Linear
    keys_values: _Linear
    head_norms: Tensor | None
    out: Tensor
    norm_two: Tensor
    gate_up: _Linear
    down: Tensor


class _Span(NamedTuple):
    """Queries ``start`` to ``stop`` of a pass: those of one row that see its first ``columns`` columns, up to their own."""

    start: int
    stop: int
    slot: int
    columns: int


class _Batch(NamedTuple):
    """One query for each of the first slots, and which columns it sees: [rows * groups, 1, columns]."""

    columns: int
    mask: Tensor


class DecoderForward:
    """``Forward`` on the weights of a model that ``fits``."""

    def __init__(self, model: Any, device: torch.device) -> None:
        config = model.config
        body, packed = _get_causal(model).model, _is_small(model)
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.width = body.layers[0].self_attn.head_dim
        self.epsilon = config.rms_norm_eps
        with torch.no_grad():
            self.embedding = compute_effective_weight(body.embed_tokens)
            self.head = compute_effective_weight(_get_causal(model).lm_head)
            self.norm = body.norm.weight
            self.layers = [_read_layer(layer, packed) for layer in body.layers]
            self.frequencies = body.rotary_emb.inv_freq.to(device)
            self.scaling = body.rotary_emb.attention_scaling
        dtype = self.embedding.dtype
        exact = dtype == torch.float32 and device.type == "cpu"
        self.mean = _make_mean(len(self.norm), self.epsilon, device) if exact else None
        self.slots = KVCache(len(self.layers), self.groups, self.width, dtype, device)
        self._prepare_positions(512)

    @staticmethod
    def fits(model: Any) -> bool:
        """Return whether the model is one of those implemented here: fixed rotary embedding, no sliding windows, SiLU."""
        config = model.config
        if config.model_type not in _MODEL_TYPES or config.hidden_act != "silu" or getattr(config, "mlp_bias", False):
            return False
        rope = getattr(config, "rope_parameters", None) or {}
        kinds = getattr(config, "layer_types", None)
        sliding = getattr(config, "sliding_window", None) is not None if kinds is None else "sliding_attention" in kinds
        attention = _get_causal(model).model.layers[0].self_attn
        fixed: bool = rope.get("rope_type", "default") in _FIXED_ROPES
        return fixed and not sliding and bool(attention.o_proj.bias is None)

    def _prepare_positions(self, count: int) -> None:
        """Tabulate cosines, sines with the sign that the rotation gives them, and the mask of a block of queries.

        The mask is that of the longest row; a shorter row takes the columns at its right end.
        """
        device, dtype = self.frequencies.device, self.embedding.dtype
        angles = torch.arange(count, device=device).float().outer(self.frequencies)
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        self.cos = torch.cat((cos, cos), dim=-1).to(dtype).unsqueeze(1)
        self.sin = torch.cat((-sin, sin), dim=-1).to(dtype).unsqueeze(1)
        ahead = torch.full((_QUERY_BLOCK, _QUERY_BLOCK), torch.finfo(dtype).min, dtype=dtype, device=device).triu(1)
        self.mask = F.pad(ahead, (count, 0))

    @torch.inference_mode()
    def compute_logits(self, chunks: Chunks, choices: Tensor | None = None) -> Tensor:
        if chunks.columns > len(self.cos):
            self._prepare_positions(2 * chunks.columns)
        found = [
            self._run_pass(part, None if choices is None else choices[rows])
            for rows, part in chunks.split(_MAX_TOKENS_PER_PASS)
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _run_pass(self, chunks: Chunks, choices: Tensor | None) -> Tensor:
        slots, places = chunks.locate()
        cells = self.slots.find_cells(slots, places)
        device = self.slots.device
        positions = torch.from_numpy(places).to(device)
        angles = self.cos[positions], self.sin[positions]
        hidden = F.embedding(torch.from_numpy(chunks.ids).to(device), self.embedding)
        view = self._plan_last(chunks) if chunks.single else _plan_rows(chunks)
        whole = self.layers if chunks.single else self.layers[:-1]
        for index, layer in enumerate(whole):
            mixed = self._split_heads(layer.mix(self._normalize(hidden, layer.norm)))
            turned = self._turn(mixed[:, : self.heads + self.groups], layer.head_norms, angles)
            self.slots.write(index, cells, turned[:, self.heads :], mixed[:, self.heads + self.groups :])
            hidden = self._finish_layer(layer, hidden, self._attend(index, turned[:, : self.heads], view))
        if not chunks.single:
            last = torch.from_numpy(chunks.ends - 1).to(device)
            hidden = self._run_last_layer(hidden, cells, angles, last, self._plan_last(chunks))
        return self._compute_scores(self._normalize(hidden, self.norm), choices)

    def _run_last_layer(
        self, hidden: Tensor, cells: Tensor, angles: tuple[Tensor, Tensor], last: Tensor, view: list[_Span] | _Batch
    ) -> Tensor:
        """Keys and values of all tokens, and the rest for the last token of each row."""
        index, layer, norms = len(self.layers) - 1, self.layers[-1], self.layers[-1].head_norms
        normed = self._normalize(hidden, layer.norm)
        mixed = self._split_heads(layer.keys_values(normed))
        keys = self._turn(mixed[:, : self.groups], None if norms is None else norms[self.heads :], angles)
        self.slots.write(index, cells, keys, mixed[:, self.groups :])
        queries = self._split_heads(layer.queries(normed[last]))
        asked = angles[0][last], angles[1][last]
        queries = self._turn(queries, None if norms is None else norms[: self.heads], asked)
        return self._finish_layer(layer, hidden[last], self._attend(index, queries, view))

    def _plan_last(self, chunks: Chunks) -> list[_Span] | _Batch:
        """Return what the last token of each row sees: in one batch if the rows stand in front, else row by row."""
        if not chunks.in_front:
            seen = zip(chunks.slots.tolist(), chunks.seen.tolist(), strict=True)
            return [_Span(row, row + 1, slot, columns) for row, (slot, columns) in enumerate(seen)]
        mask = make_length_mask(np.repeat(chunks.seen, self.groups), chunks.columns, self.slots.dtype)
        return _Batch(chunks.columns, mask.to(self.slots.device).unsqueeze(1))

    def _normalize(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """On a CPU in single precision the mean of squares is a matrix product, which takes few rows half the library's time."""
        if self.mean is None:
            return F.rms_norm(hidden, weight.shape, weight, self.epsilon)
        epsilon, column = self.mean
        return torch.addmm(epsilon, hidden * hidden, column).rsqrt_().mul(hidden).mul_(weight)

    def _split_heads(self, mixed: Tensor) -> Tensor:
        """[tokens, heads * width] to [tokens, heads, width]."""
        return mixed.view(len(mixed), -1, self.width)

    def _turn(self, vectors: Tensor, norms: Tensor | None, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Norm the heads, where the model does, and rotate them to their positions."""
        if norms is not None:
            vectors = F.rms_norm(vectors, (self.width,), None, self.epsilon) * norms
        return torch.addcmul(vectors * angles[0], vectors.roll(self.width // 2, -1), angles[1])

    def _attend(self, index: int, queries: Tensor, view: list[_Span] | _Batch) -> Tensor:
        """Let the queries [tokens, heads, width] attend to what their rows hold; return [tokens, heads * width]."""
        if isinstance(view, _Batch):
            return self._attend_together(index, queries, view)
        keys, values = self.slots.keys[index], self.slots.values[index]
        turned = queries.transpose(0, 1).unsqueeze(0)
        reach = self.mask.shape[1]
        found = []
        for start, stop, slot, columns in view:
            count = stop - start
            right = reach - _QUERY_BLOCK + count
            seen = F.scaled_dot_product_attention(
                turned[:, :, start:stop],
                keys[slot : slot + 1, :, :columns],
                values[slot : slot + 1, :, :columns],
                attn_mask=None if count == 1 else self.mask[:count, right - columns : right],
                enable_gqa=self.groups != self.heads,
            )
            found.append(seen.transpose(1, 2))
        return torch.cat(found, dim=1).view(len(queries), -1)

    def _attend_together(self, index: int, queries: Tensor, view: _Batch) -> Tensor:
        """One query per row: two batched products, which for so little work beat the fused kernel."""
        rows, lines = len(queries), len(queries) * self.groups
        keys, values = (
            store.view(-1, self.slots.columns, self.width)[:lines, : view.columns]
            for store in (self.slots.keys[index], self.slots.values[index])
        )
        grouped = queries.reshape(lines, -1, self.width)
        scores = torch.baddbmm(view.mask, grouped, keys.transpose(1, 2), alpha=self.width**-0.5)
        return torch.bmm(torch.softmax(scores, dim=-1), values).view(rows, -1)

    def _finish_layer(self, layer: _Layer, hidden: Tensor, seen: Tensor) -> Tensor:
        hidden = torch.addmm(hidden, seen, layer.out.t())
        gate, up = layer.gate_up(self._normalize(hidden, layer.norm_two)).chunk(2, dim=-1)
        return torch.addmm(hidden, F.silu(gate).mul_(up), layer.down.t())

    def _compute_scores(self, hidden: Tensor, choices: Tensor | None) -> Tensor:
        """The logits of the wanted tokens; many of them are cheaper picked out of one product with the whole head."""
        if choices is not None and choices.numel() <= 2 * len(self.head):
            return torch.bmm(self.head[choices], hidden.unsqueeze(-1)).squeeze(-1)
        logits = F.linear(hidden, self.head)
        return logits if choices is None else logits.gather(1, choices)


def _plan_rows(chunks: Chunks) -> list[_Span]:
    """Return the cached tokens that each row's queries attend to, block by block."""
    rows = zip(chunks.ends.tolist(), chunks.lengths.tolist(), chunks.slots.tolist(), chunks.seen.tolist(), strict=True)
    return [
        _Span(start, stop, slot, seen - (end - stop))
        for end, length, slot, seen in rows
        for start, stop in _cut(end - length, end)
    ]


def _cut(start: int, stop: int) -> list[tuple[int, int]]:
    """Cut a run of queries into blocks, the first of them the short one."""
    size = _QUERY_BLOCK
    first = start + (stop - start - 1) % size + 1
    edges = [start, *range(first, stop + 1, size)]
    return list(pairwise(edges))


def make_length_mask(lengths: Integers, columns: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of one query per row: 0 for the first ``lengths`` columns, else the least number."""
    least = np.float32(torch.finfo(dtype).min)
    mask = np.where(np.arange(columns) < lengths[:, None], np.float32(0.0), least)
    return torch.from_numpy(mask).to(dtype)


def _make_mean(width: int, epsilon: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """What is added to a mean over ``width`` numbers, and the column whose product with them is the mean."""
    return torch.full((1,), epsilon, device=device), torch.full((width, 1), 1 / width, device=device)


def _get_causal(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _is_small(model: Any) -> bool:
    return bool(sum(weight.numel() for weight in model.parameters()) <= _MAX_PACKED_PARAMETERS)


def _read_linear(modules: list[Any], packed: bool) -> _Linear:
    weights = [compute_effective_weight(module) for module in modules]
    plain = [module.get_base_layer() if hasattr(module, "get_base_layer") else module for module in modules]
    biases = [module.bias for module in plain]
    if not packed:
        return _Linear(tuple(weights), tuple(biases))
    return _Linear((torch.cat(weights),), (None if biases[0] is None else torch.cat(biases),))


def _read_layer(layer: Any, packed: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    mix = _read_linear([attention.q_proj, attention.k_proj, attention.v_proj], packed)
    cut = attention.q_proj.out_features
    queries, keys_values = _split_linear(mix, cut)
    return _Layer(
        layer.input_layernorm.weight,
        mix,
        queries,
        keys_values,
        _read_head_norms(attention),
        compute_effective_weight(attention.o_proj),
        layer.post_attention_layernorm.weight,
        _read_linear([mlp.gate_proj, mlp.up_proj], packed),
        compute_effective_weight(mlp.down_proj),
    )


def _split_linear(mix: _Linear, cut: int) -> tuple[_Linear, _Linear]:
    """Return the projections to queries, and to keys and values: views of the same memory."""
    if len(mix.weights) > 1:
        return _Linear(mix.weights[:1], mix.biases[:1]), _Linear(mix.weights[1:], mix.biases[1:])
    (weight,), (bias,) = mix
    first = _Linear((weight[:cut],), (None if bias is None else bias[:cut],))
    return first, _Linear((weight[cut:],), (None if bias is None else bias[cut:],))


def _read_head_norms(attention: Any) -> Tensor | None:
    """Qwen3's norms of queries and keys, repeated for every head: [heads + groups, width]."""
    if not hasattr(attention, "q_norm"):
        return None
    counts = [module.out_features // attention.head_dim for module in (attention.q_proj, attention.k_proj)]
    norms = zip((attention.q_norm, attention.k_norm), counts, strict=True)
    return torch.cat([norm.weight.detach().expand(count, -1) for norm, count in norms])
