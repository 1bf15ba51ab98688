"""A mini-batch of a policy step: how rows are cut into mini-batches, what a token weighs, and what it loses in all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.learning.losses import BaseLoss, Clip, Tokens
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Row

if TYPE_CHECKING:
    from torch import Tensor


def split_minibatches(count: int, settings: LearningSettings, rng: np.random.Generator) -> list[list[int]]:
    """Numbers of the rows of each mini-batch of one pass over `count` rows; a single mini-batch keeps their order."""
    if not count:
        return []
    size = settings.minibatch_rows
    if size is None:
        parts = min(settings.minibatches, count)
    elif (
        settings.minibatch_fill
    ):  # in order, and as many rows again, drawn at random, as make the last mini-batch whole
        missing = -count % size
        filled = [*range(count), *rng.choice(count, missing, replace=missing > count).tolist()]
        return [filled[start : start + size] for start in range(0, len(filled), size)]
    else:
        parts = -(-count // size)
    if parts == 1:
        return [list(range(count))]
    order = rng.permutation(count)
    if size is None:
        return [part.tolist() for part in np.array_split(order, parts)]
    return [order[start : start + size].tolist() for start in range(0, count, size)]


def token_weights(
    lengths: NDArray[np.int64], loss: BaseLoss, shares: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """For each row, the weight of one of its tokens in the loss. Rows without tokens count as rows. `shares` is what
    each row counts where rows are averaged, by default 1."""
    rows, tokens = len(lengths), int(lengths.sum())
    if rows == 0 or tokens == 0:
        return np.zeros(rows, dtype=np.float64)
    if loss.averaging == "token":
        if loss.rows is None:
            return np.full(rows, 1.0 / tokens)
        # the mean over the tokens of each run of rows, then over the runs; a run without tokens counts as zero
        starts = np.arange(0, rows, loss.rows)
        each = 1.0 / (len(starts) * np.maximum(np.add.reduceat(lengths, starts), 1))
        return np.asarray(np.repeat(each, np.diff([*starts, rows])), dtype=np.float64)
    if loss.averaging == "constant":
        return np.full(rows, 1.0 / (rows * loss.length))
    if shares is not None:
        return np.asarray(shares / (shares.sum() * np.maximum(lengths, 1)), dtype=np.float64)
    return 1.0 / (rows * np.maximum(lengths, 1))


def weigh_rows(rows: Sequence[Row], loss: BaseLoss) -> NDArray[np.float64]:
    """`token_weights` of rows, of which some may count less than others."""
    shares = np.array([row.weight for row in rows]) if any(row.weight != 1.0 for row in rows) else None
    return token_weights(np.array([len(row.own) for row in rows], dtype=np.int64), loss, shares)


class TokenLosses(NamedTuple):
    """The loss of each token, and what is reported about it."""

    loss: Tensor
    policy: Tensor
    penalties: tuple[Tensor, ...]
    ratio: Tensor
    clipped: Tensor


def token_losses(
    tokens: Tokens,
    settings: LearningSettings,
    penalties: Sequence[tuple[float, Tensor]] = (),
    entropy: Tensor | None = None,
) -> TokenLosses:
    """The policy's loss, penalties (weight and value) and entropy of each token."""
    policy, ratio, clipped = settings.loss.compute(tokens, Clip(*settings.clip, settings.dual_clip))
    if tokens.correction is not None and not settings.loss.corrects_itself:
        policy = policy * tokens.correction
    loss = policy
    for weight, value in penalties:
        loss = loss + weight * value
    if entropy is not None:
        loss = loss - settings.entropy * entropy
    if clipped is None:
        clipped = ratio.isinf()  # bounded exponents: false everywhere
    return TokenLosses(loss, policy, tuple(value for _, value in penalties), ratio, clipped)
