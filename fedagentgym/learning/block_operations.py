"""The operations between the matrix products of a decoder block, with little memory kept for the backward pass.

Autograd would keep every intermediate result: together three times what the block needs. The values are those of transformers'
modules, step for step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def normalize(module: Any, hidden: Tensor) -> Tensor:
    """The RMSNorm of transformers, in single precision."""
    answer: Tensor = _RMSNorm.apply(hidden, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return answer


def rotate(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: [tokens, heads, width] turned by angles [tokens, 1, width]."""
    answer: Tensor = _Rotation.apply(vectors, cos, sin)  # type: ignore[no-untyped-call]
    return answer


def gate_with_silu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    answer: Tensor = _SiluGate.apply(gate, up)  # type: ignore[no-untyped-call]
    return answer


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
        turned[..., : left.shape[-1]].addcmul_(right, first, value=-1)
        turned[..., left.shape[-1] :].addcmul_(left, second)
        return turned.to(vectors.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        (left, right), (first, second) = gradient.to(cos.dtype).chunk(2, -1), sin.chunk(2, -1)
        back = gradient * cos
        back[..., : left.shape[-1]].addcmul_(right, second)
        back[..., left.shape[-1] :].addcmul_(left, first, value=-1)
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
