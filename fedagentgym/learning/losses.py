"""The GRPO loss on flat tensors: one entry per token of the agent's own. Pure functions of tensors.

    ratio  = exp(logprob - behaviour)
    policy = -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)
    k3     = exp(reference - logprob) - (reference - logprob) - 1
    loss   = sum over tokens of weight * (policy + beta * k3 - c * entropy)

All three ways of averaging are a choice of the tokens' weights (`token_weights`). The weights are made for the whole mini-batch,
so it does not matter how it is cut for the forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedagentgym.learning.settings import LearningSettings, LossSettings

LARGEST_LOG_RATIO = 20.0


class TokenLosses(NamedTuple):
    """The loss of each token, and what is reported about it."""

    loss: torch.Tensor
    policy: torch.Tensor
    penalties: tuple[torch.Tensor, ...]
    ratio: torch.Tensor
    clipped: torch.Tensor


def token_weights(lengths: NDArray[np.int64], settings: LossSettings) -> NDArray[np.float64]:
    """For each row, the weight of one of its tokens in the loss. Rows without tokens count as rows."""
    rows, tokens = len(lengths), int(lengths.sum())
    if rows == 0 or tokens == 0:
        return np.zeros(rows, dtype=np.float64)
    if settings.name == "token":
        return np.full(rows, 1.0 / tokens) if settings.rows is None else _weigh_parts(lengths, settings.rows)
    if settings.name == "constant":
        return np.full(rows, 1.0 / (rows * settings.length))
    return 1.0 / (rows * np.maximum(lengths, 1))


def _weigh_parts(lengths: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """The mean over the tokens of each run of `size` rows, then over the runs; a run without tokens counts as zero."""
    starts = np.arange(0, len(lengths), size)
    totals = np.add.reduceat(lengths, starts)
    each = 1.0 / (len(starts) * np.maximum(totals, 1))
    return np.asarray(np.repeat(each, np.diff([*starts, len(lengths)])), dtype=np.float64)


def token_losses(
    logprobs: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    settings: LearningSettings,
    penalties: Sequence[tuple[float, torch.Tensor]] = (),
    entropy: torch.Tensor | None = None,
) -> TokenLosses:
    """Clipped surrogate, penalties (weight and value) and entropy of each token; exponents are bounded, so that nothing
    overflows."""
    low, high = settings.clip
    ratio = torch.exp((logprobs - behaviour).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    clipped_ratio = ratio.clamp(1 - low, 1 + high)
    policy = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
    if settings.dual_clip is not None:
        bound = -settings.dual_clip * advantages
        policy = torch.where(advantages < 0, torch.minimum(policy, bound), policy)
    loss = policy
    for weight, value in penalties:
        loss = loss + weight * value
    if entropy is not None:
        loss = loss - settings.entropy * entropy
    outside = ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))
    return TokenLosses(loss, policy, tuple(value for _, value in penalties), ratio, outside)


def compute_k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(policy || reference) at each token."""
    difference = (reference - logprobs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return torch.exp(difference) - difference - 1
