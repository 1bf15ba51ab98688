"""One layer of the decoder: the order of its operations, and the parts that they call.

A pass with gradients (`packed`) calls a layer's own modules, so that adapters, biases and autocast act as usual. A pass without
gradients (`cached`) uses their weights, with adapters merged, in fewer and larger products. Each builds a `Layer` from a module
whose parts have the names of Hugging Face's Llama.

Shapes: hidden states [tokens, hidden], queries, keys and values [tokens, heads, width].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

SMALL_MATRIX = 1 << 16
"""For matrices of at most this many weights, the adapter's own module is used, since its extra operations cost little there."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention: queries, keys and values in, [queries, heads * width] out."""
Norm = Callable[[Tensor], Tensor]


class Linear(Protocol):
    """A linear layer."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the output."""
        ...

    def add_to(self, states: Tensor, hidden: Tensor) -> Tensor:
        """Return the sum of states and the output."""
        ...


class Linears(Protocol):
    """Linear layers with the same input."""

    def __call__(self, hidden: Tensor) -> Sequence[Tensor]:
        """Return the output of each layer."""
        ...


class Layer(NamedTuple):
    """The parts of a layer. The norms of query and key heads are None where the architecture has none."""

    width: int
    input_norm: Norm
    query_key_value: Linears
    query: Linear
    key_value: Linears
    query_norm: Norm | None
    key_norm: Norm | None
    out: Linear
    mlp_norm: Norm
    gate_up: Linears
    down: Linear

    def run(
        self,
        hidden: Tensor,
        angles: Angles,
        attend: Attend,
        queried: Tensor | None = None,
        outputs: Tensor | None = None,
    ) -> Tensor:
        """Return the states after this layer.

        Args:
            hidden: The states of all tokens.
            angles: The rotations of the tokens' positions.
            attend: Attention of the `queried` tokens to all tokens; returns one row for each of `outputs`.
            queried: Indices of the tokens whose queries are computed; None for all.
            outputs: Indices of the tokens whose states are returned; None for all.
        """
        normed, turning = self.input_norm(hidden), angles
        if queried is None:
            query, key, value = self.query_key_value(normed)
        else:
            query, turning = self.query(take(normed, queried)), angles.at(queried)
            key, value = self.key_value(normed)
        query, key, value = (vectors.view(len(vectors), -1, self.width) for vectors in (query, key, value))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        seen = attend(rotate(query, turning), rotate(key, angles), value)
        if outputs is not None:
            hidden = take(hidden, outputs)
        hidden = self.out.add_to(hidden, seen)
        gate, up = self.gate_up(self.mlp_norm(hidden))
        gated: Tensor
        if torch.is_grad_enabled():
            gated = _SiluGate.apply(gate, up)  # type: ignore[no-untyped-call]
        else:
            gated = F.silu(gate).mul_(up)
        return self.down.add_to(hidden, gated)


def take(table: Tensor, index: Tensor) -> Tensor:
    """Return rows of a table by an embedding look-up. Its gradient is summed in a fixed order, unlike that of indexing."""
    return F.embedding(index, table)


class Angles(NamedTuple):
    """Rotations of positions, [tokens, 1, width]: the cosines, and the sines, which are negated in the first half."""

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


# ---- a layer's own modules, with gradients -------------------------------------------------------------------------------


def read_layer(layer: Any) -> Layer:
    """Return a `Layer` that calls the modules of a Hugging Face layer."""
    attention, mlp = layer.self_attn, layer.mlp
    mixed = Separate([ModuleLinear(part) for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
    query, key_value = mixed.split_first()
    has_norms = getattr(attention, "q_norm", None) is not None
    return Layer(
        width=attention.head_dim,
        input_norm=partial(normalize, layer.input_layernorm),
        query_key_value=mixed,
        query=query,
        key_value=key_value,
        query_norm=partial(normalize, attention.q_norm) if has_norms else None,
        key_norm=partial(normalize, attention.k_norm) if has_norms else None,
        out=ModuleLinear(attention.o_proj),
        mlp_norm=partial(normalize, layer.post_attention_layernorm),
        gate_up=Separate([ModuleLinear(mlp.gate_proj), ModuleLinear(mlp.up_proj)]),
        down=ModuleLinear(mlp.down_proj),
    )


class ModuleLinear(NamedTuple):
    """A linear module, with an adapter or without."""

    module: Any

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the output. On a CPU, plain LoRA on a large frozen matrix is computed by `_AdaptedLinear`."""
        module = self.module
        names = module.active_adapters if hasattr(module, "lora_A") and not module.merged else []
        if (
            len(names) == 1
            and names[0] in module.lora_A
            and not module.disable_adapters
            and hidden.device.type == "cpu"
        ):
            (name,), base = names, module.get_base_layer()
            weight, low, high = base.weight, module.lora_A[name], module.lora_B[name]
            plain = not module.lora_variant and isinstance(module.lora_dropout[name], torch.nn.Identity)
            one_type = hidden.dtype == weight.dtype == low.weight.dtype and low.bias is None and high.bias is None
            if plain and one_type and not weight.requires_grad and weight.numel() > SMALL_MATRIX:
                adapter = low.weight, high.weight, module.scaling[name]
                adapted: Tensor = _AdaptedLinear.apply(hidden, weight, base.bias, *adapter)  # type: ignore[no-untyped-call]
                return adapted
        output: Tensor = module(hidden)
        return output

    def add_to(self, states: Tensor, hidden: Tensor) -> Tensor:
        return states + self(hidden)


class Separate(NamedTuple):
    """Linear layers that are computed one by one."""

    parts: Sequence[Linear]

    def __call__(self, hidden: Tensor) -> list[Tensor]:
        return [part(hidden) for part in self.parts]

    def split_first(self) -> tuple[Linear, Separate]:
        return self.parts[0], Separate(self.parts[1:])


# Reasons for two kinds of parts and for gradients by hand, measured on one core as the best of several alternating runs:
# * A rollout takes 95 ms through the modules instead of 79 ms at 0.1 million parameters, and 551 ms instead of 519 ms at 10
#   million. The last bits of its log-probs differ.
# * With gradients by hand, a pass keeps 9,154 numbers for each token and layer at SmolLM2's widths. Autograd takes the same time
#   and keeps 11,938; the last bits of the gradients of norms and rotations differ.
# * Adding an adapter's products in place saves 8 % of a step at 10 million parameters (558 ms instead of 605 ms).
# The forward values are those of transformers' modules, step for step.


def normalize(module: Any, hidden: Tensor) -> Tensor:
    """Apply the RMSNorm of transformers, which computes in single precision."""
    answer: Tensor = _RMSNorm.apply(hidden, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return answer


def rotate(vectors: Tensor, angles: Angles) -> Tensor:
    """Apply rotary position embeddings."""
    answer: Tensor
    if torch.is_grad_enabled():
        answer = _Rotation.apply(vectors, *angles)  # type: ignore[no-untyped-call]
    else:
        answer = _turn(vectors, *angles)
    return answer


def _turn(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = vectors.to(cos.dtype)
    return torch.addcmul(wide * cos, wide.roll(wide.shape[-1] // 2, -1), sin).to(vectors.dtype)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(vectors, cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turn(gradient, cos, -sin), None, None


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


class _AdaptedLinear(torch.autograd.Function):
    """A frozen matrix and its adapter. The adapter's part is added in place in the forward and the backward pass."""

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
