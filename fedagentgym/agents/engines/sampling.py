"""From logits to tokens: inverse CDF with one uniform per row, and the log-probability under exactly that distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class SampledTokens(NamedTuple):
    ids: Tensor
    logprobs: Tensor


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float, top_p: float = 1.0) -> SampledTokens:
    """Draw one column per row of ``logits`` [rows, columns]; ``uniforms`` [rows] are strictly between 0 and 1, in float64.

    The cumulative sum runs in float64 and is compared with ``u * total``, so a token's chance is its probability to within
    float32's rounding of the probability itself. Columns at minus infinity are never drawn.
    """
    if temperature == 0.0:
        ids = logits.argmax(dim=-1)
        return SampledTokens(ids, torch.zeros(len(ids), dtype=torch.float32, device=logits.device))
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    logprobs = torch.log_softmax(scaled, dim=-1)
    if top_p < 1.0:
        logprobs = torch.log_softmax(logprobs.masked_fill(~nucleus(logprobs, top_p), float("-inf")), dim=-1)
    ends = logprobs.double().exp().cumsum(dim=-1)
    ids = torch.searchsorted(ends, (uniforms * ends[:, -1]).unsqueeze(-1), right=True)
    ids = ids.clamp_(max=logits.shape[-1] - 1)
    return SampledTokens(ids.squeeze(-1), logprobs.gather(-1, ids).squeeze(-1))


def nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """Mark the smallest set of most likely columns whose probability reaches ``top_p``; ties go to the lower id."""
    ordered, order = logprobs.exp().sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    return torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, before < top_p)


def sample_allowed_tokens(
    logits: Tensor, uniforms: Tensor, allowed: Sequence[Sequence[int]], temperature: float, top_p: float = 1.0
) -> SampledTokens:
    """``draw`` from the distribution renormalised over each row's allowed ids."""
    width = max(len(ids) for ids in allowed)
    table = torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in allowed], device=logits.device)
    few = logits.float().gather(-1, table.clamp(min=0)).masked_fill(table < 0, float("-inf"))
    drawn = sample_tokens(few, uniforms, temperature, top_p)
    return SampledTokens(table.gather(-1, drawn.ids.unsqueeze(-1)).squeeze(-1), drawn.logprobs)
