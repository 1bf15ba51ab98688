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
    """Draw a column per row of ``logits`` [rows, columns], or several: ``uniforms`` [rows] or [rows, draws].

    They are strictly between 0 and 1, in float64. The cumulative sum runs in float64 and is compared with ``u * total``, so a
    token's chance is its probability to within float32's rounding of the probability itself. Columns at minus infinity are never
    drawn.
    """
    if temperature == 0.0:
        best = logits.argmax(dim=-1, keepdim=True).expand(len(logits), uniforms[:1].numel())
        return SampledTokens(best.reshape(uniforms.shape), torch.zeros_like(uniforms))
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    if top_p < 1.0:
        kept = nucleus(torch.log_softmax(scaled, dim=-1), top_p)
        scaled = scaled.masked_fill(~kept, float("-inf"))
    highest = scaled.amax(dim=-1, keepdim=True)
    ends = (scaled - highest).exp_().cumsum(dim=-1, dtype=torch.float64)
    total = ends[:, -1:]
    ids = torch.searchsorted(ends, uniforms.view(len(ends), -1) * total, right=True).clamp_(max=logits.shape[-1] - 1)
    logprobs = scaled.gather(-1, ids).double() - highest - total.log()
    return SampledTokens(ids.view(uniforms.shape), logprobs.view(uniforms.shape))


def nucleus(logprobs: Tensor, top_p: float) -> Tensor:
    """Mark the smallest set of most likely columns whose probability reaches ``top_p``; ties go to the lower id."""
    ordered, order = logprobs.exp().sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    return torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, before < top_p)


def make_choice_table(choices: Sequence[Sequence[int] | None], device: torch.device) -> Tensor | None:
    """Stack sets of token ids, [rows, widest], filled up with -1; None if some row is not constrained."""
    lists = [ids for ids in choices if ids is not None]
    if len(lists) < len(choices):
        return None
    width = max(map(len, lists))
    return torch.tensor([[*ids, *[-1] * (width - len(ids))] for ids in lists], device=device)


def sample_choices(
    logits: Tensor, uniforms: Tensor, table: Tensor, temperature: float, top_p: float = 1.0
) -> SampledTokens:
    """Draw from the distribution renormalised over each row's choices; ``logits`` are those of the table's tokens."""
    drawn = sample_tokens(logits.float().masked_fill(table < 0, float("-inf")), uniforms, temperature, top_p)
    return SampledTokens(table.gather(-1, drawn.ids.unsqueeze(-1)).squeeze(-1), drawn.logprobs)


def forbid_others(logits: Tensor, choices: Sequence[Sequence[int] | None]) -> Tensor:
    """Set the logits of all but each row's choices to minus infinity; a row without a list keeps all."""
    allowed = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    for line, ids in zip(allowed, choices, strict=True):
        line[slice(None) if ids is None else list(ids)] = True
    return logits.masked_fill(~allowed, float("-inf"))
