"""One layer of the decoder: its modules, the order of its operations, and the operations of a pass with gradients.

A layer is a module with the names that Hugging Face gives to Llama's; adapters may lie on its projections. Two kinds of passes
run it, and both in `run_layer`: through the modules, with gradients (`ModuleLayer`), and through their merged weights, without
(`cached.MergedLayer`). Shapes: hidden states [tokens, hidden], queries, keys and values [tokens, heads, width].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

SMALL_MATRIX = 1 << 16
"""Weights up to which a matrix and its adapter are computed by the adapter's own module, whose operations cost little there."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention: queries, keys and values in, [queries, heads * width] out."""


class Parts(NamedTuple):
    """The modules of a layer. Norms of query and key heads are None where the architecture has none."""

    input_norm: Any
    query: Any
    key: Any
    value: Any
    query_norm: Any
    key_norm: Any
    out: Any
    mlp_norm: Any
    gate: Any
    up: Any
    down: Any
    width: int


def read_parts(layer: Any) -> Parts:
    """Return the modules of a layer."""
    attention, mlp = layer.self_attn, layer.mlp
    return Parts(
        layer.input_layernorm,
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        getattr(attention, "q_norm", None),
        getattr(attention, "k_norm", None),
        attention.o_proj,
        layer.post_attention_layernorm,
        mlp.gate_proj,
        mlp.up_proj,
        mlp.down_proj,
        attention.head_dim,
    )


class Angles(NamedTuple):
    """Rotations to positions, [tokens, 1, width]: the cosines, and the sines with the sign that each half needs."""

    cos: Tensor
    sin: Tensor

    def at(self, index: Tensor) -> Angles:
        return Angles(self.cos.index_select(0, index), self.sin.index_select(0, index))


@torch.no_grad()
def compute_angles(rotary: Any, positions: Tensor, dtype: torch.dtype) -> Angles:
    """Return the rotations of a model's rotary embedding for some positions."""
    half = positions.float()[:, None] * rotary.inv_freq.to(positions.device, torch.float32)
    angles = torch.cat((half, half), dim=-1)
    cos, sin = angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
    sin[:, : half.shape[1]].neg_()
    return Angles(cos.to(dtype).unsqueeze(1), sin.to(dtype).unsqueeze(1))


class Layer(Protocol):
    """The steps of a layer, in which the two kinds of passes differ."""

    def normalize(self, hidden: Tensor) -> Tensor:
        """The norm before attention."""
        ...

    def project(self, normed: Tensor, angles: Angles, queried: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the `queried` tokens (None: of all), and keys and values of all; queries and keys rotated."""
        ...

    def add_attention(self, hidden: Tensor, seen: Tensor) -> Tensor:
        """Add the projection of what attention has found."""
        ...

    def add_mlp(self, hidden: Tensor) -> Tensor:
        """Add the gated layer's output."""
        ...


def run_layer(
    layer: Layer,
    hidden: Tensor,
    angles: Angles,
    attend: Attend,
    queried: Tensor | None = None,
    outputs: Tensor | None = None,
) -> Tensor:
    """Run a layer: hidden states of all tokens in, those of the `outputs` (None: of all) out.

    Args:
        layer: The layer.
        hidden: The states of all tokens.
        angles: The rotations of their positions.
        attend: Attention of the `queried` tokens to all; it returns one row for each output.
        queried: The tokens whose queries are computed; None for all.
        outputs: The tokens whose states are wanted; None for all.

    Returns:
        The states after this layer.
    """
    query, key, value = layer.project(layer.normalize(hidden), angles, queried)
    seen = attend(query, key, value)
    if outputs is not None:
        hidden = take(hidden, outputs)
    return layer.add_mlp(layer.add_attention(hidden, seen))


def take(table: Tensor, index: Tensor) -> Tensor:
    """Return rows of a table. Unlike indexing's, the gradient of a look-up is summed row by row, in one order."""
    return F.embedding(index, table)


# ---- with gradients ------------------------------------------------------------------------------------------------------


class ModuleLayer:
    """A layer through its own modules, so that adapters, biases and autocast act as they do elsewhere."""

    def __init__(self, layer: Any) -> None:
        self._parts = read_parts(layer)
        adapted: dict[str, Any] = {}
        for name, part in zip(Parts._fields, self._parts, strict=True):
            if hasattr(part, "lora_A"):
                adapted[name] = partial(_run_adapted, part)
        self._parts = self._parts._replace(**adapted)

    def normalize(self, hidden: Tensor) -> Tensor:
        return normalize(self._parts.input_norm, hidden)

    def project(self, normed: Tensor, angles: Angles, queried: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        parts = self._parts
        asking, turning = (normed, angles) if queried is None else (take(normed, queried), angles.at(queried))
        query = rotate(self._split_heads(parts.query(asking), parts.query_norm), turning)
        key = rotate(self._split_heads(parts.key(normed), parts.key_norm), angles)
        return query, key, self._split_heads(parts.value(normed), None)

    def _split_heads(self, vectors: Tensor, norm: Any) -> Tensor:
        heads = vectors.view(len(vectors), -1, self._parts.width)
        return heads if norm is None else normalize(norm, heads)

    def add_attention(self, hidden: Tensor, seen: Tensor) -> Tensor:
        added: Tensor = hidden + self._parts.out(seen)
        return added

    def add_mlp(self, hidden: Tensor) -> Tensor:
        parts, normed = self._parts, normalize(self._parts.mlp_norm, hidden)
        gated: Tensor = _SiluGate.apply(parts.gate(normed), parts.up(normed))  # type: ignore[no-untyped-call]
        added: Tensor = hidden + parts.down(gated)
        return added


# Autograd would keep every intermediate result between the products: together three times what a layer needs. The values are
# those of transformers' modules, step for step.


def normalize(module: Any, hidden: Tensor) -> Tensor:
    """The RMSNorm of transformers, in single precision."""
    answer: Tensor = _RMSNorm.apply(hidden, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return answer


def rotate(vectors: Tensor, angles: Angles) -> Tensor:
    """Rotary positions."""
    answer: Tensor = _Rotation.apply(vectors, *angles)  # type: ignore[no-untyped-call]
    return answer


def _run_adapted(module: Any, hidden: Tensor) -> Tensor:
    """The output of a linear module with an adapter."""
    output: Tensor
    adapter = _find_adapter(module, hidden)
    if adapter is None:
        output = module(hidden)
    else:
        base = module.get_base_layer()
        output = _AdaptedLinear.apply(hidden, base.weight, base.bias, *adapter)  # type: ignore[no-untyped-call]
    return output


def _find_adapter(module: Any, hidden: Tensor) -> tuple[Tensor, Tensor, float] | None:
    """The two matrices and the scale of a module's adapter, if it is plain LoRA on a large frozen matrix, on a processor."""
    names: list[str] = [] if module.merged else module.active_adapters
    if len(names) != 1 or names[0] not in module.lora_A or module.disable_adapters or hidden.device.type != "cpu":
        return None
    name, weight = names[0], module.get_base_layer().weight
    low, high = module.lora_A[name], module.lora_B[name]
    plain = not module.lora_variant and isinstance(module.lora_dropout[name], torch.nn.Identity)
    one_type = hidden.dtype == weight.dtype == low.weight.dtype and low.bias is None and high.bias is None
    if not plain or not one_type or weight.requires_grad or weight.numel() <= SMALL_MATRIX:
        return None
    return low.weight, high.weight, module.scaling[name]


class _AdaptedLinear(torch.autograd.Function):
    """A frozen matrix and its adapter: the adapter's part is added in place, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, low: Tensor, high: Tensor, scale: float
    ) -> Tensor:
        inner = hidden @ low.t()
        ctx.save_for_backward(hidden, weight, low, high, inner)
        ctx.scale = scale
        return F.linear(hidden, weight, bias).addmm_(inner, high.t(), alpha=scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, low, high, inner = ctx.saved_tensors
        to_inner = (gradient @ high).mul_(ctx.scale)
        to_high = (gradient.t() @ inner).mul_(ctx.scale)
        to_hidden = (gradient @ weight).addmm_(to_inner, low) if ctx.needs_input_grad[0] else None
        return to_hidden, None, None, to_inner.t() @ hidden, to_high, None


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(hidden, weight, scale)
        return weight * (wide * scale).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, scale = ctx.saved_tensors
        normed = hidden.float() * scale
        to_weight = None
        if ctx.needs_input_grad[1]:
            to_weight = (gradient * normed).flatten(0, -2).sum(0).to(weight.dtype)
        inner = (gradient * weight).float()
        along = (inner * normed).mean(-1, keepdim=True)
        return inner.sub_(normed.mul_(along)).mul_(scale).to(hidden.dtype), to_weight, None


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        (left, right), (first, second) = vectors.to(cos.dtype).chunk(2, -1), sin.chunk(2, -1)
        turned = vectors * cos
        turned[..., : left.shape[-1]].addcmul_(right, first)
        turned[..., left.shape[-1] :].addcmul_(left, second)
        return turned.to(vectors.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        (left, right), (first, second) = gradient.to(cos.dtype).chunk(2, -1), sin.chunk(2, -1)
        back = gradient * cos
        back[..., : left.shape[-1]].addcmul_(right, second)
        back[..., left.shape[-1] :].addcmul_(left, first)
        return back.to(gradient.dtype), None, None


class _SiluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        to_gate = torch.ops.aten.silu_backward(gradient * up, gate)
        return to_gate, F.silu(gate).mul_(gradient)
