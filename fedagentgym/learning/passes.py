"""The mini-batches of a policy step, the weight and the loss of each token, and the passes through the model.

Rows are divided into mini-batches, and each mini-batch into passes. One device computes all passes, or each of several devices a
share of them. The code of a step is the same in both cases: it asks for the batches of its share, scores them, and adds up the
results of all shares. With an unsharded model there is one share, and adding up changes nothing. A sharded policy implements its
own passes (`learning/sharding.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedagentgym.agents.protocols import TrainablePolicy
from fedagentgym.learning import forward
from fedagentgym.learning.forward import ScoredRow, TokenLogprobs, Value
from fedagentgym.learning.losses import BaseLoss, Clip, Tokens, compute_terms
from fedagentgym.learning.memory import PassLimits, find_pass_limits
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Row

if TYPE_CHECKING:
    from fedagentgym.learning.sharding import ShardedPolicy


def split_minibatches(count: int, settings: LearningSettings, rng: np.random.Generator) -> list[list[int]]:
    """The indices of the rows of each mini-batch, for one pass over `count` rows; a single mini-batch keeps their order."""
    if not count:
        return []
    size = settings.minibatch_rows
    if size is None:
        parts = min(settings.minibatches, count)
    elif settings.minibatch_fill:
        # in order; rows drawn at random fill the last mini-batch
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
    """For each row, the weight of one of its tokens in the loss. Rows without tokens count as rows. `shares` are the
    weights of the rows with `sequence` averaging, by default 1 each."""
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
    """`token_weights` of rows, with the rows' own weights as `shares`."""
    shares = np.array([row.weight for row in rows]) if any(row.weight != 1.0 for row in rows) else None
    return token_weights(np.array([len(row.own) for row in rows], dtype=np.int64), loss, shares)


class TokenLosses(NamedTuple):
    """The loss of each token, and the values from which it is computed and reported."""

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
    """The loss of each token: the policy's, plus `penalties` (weight and value), minus the entropy bonus."""
    policy, ratio, clipped = compute_terms(settings.loss, tokens, Clip(*settings.clip, settings.dual_clip))
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


@dataclass(frozen=True)
class WholePasses:
    """The passes of a step through a model on one device."""

    policy: TrainablePolicy
    rank: ClassVar[int] = 0
    """Index of this process's share; the first is 0."""
    recomputes: ClassVar[bool] = False
    """True if activations are recomputed in the backward pass, whatever is configured."""

    def find_limits(self, micro_tokens: int | Literal["auto"]) -> PassLimits:
        """The limits of a pass, the same for every share."""
        return find_pass_limits(self.policy.model, self.policy.device, micro_tokens)

    def iter_batches(
        self, rows: Sequence[ScoredRow], limits: PassLimits, *, shared: bool = True
    ) -> Iterator[list[int]]:
        """Yield the indices of the rows of each pass: those of this share, or of all rows if `shared` is false."""
        yield from forward.batch_rows(self.policy.model, rows, limits.micro_tokens)

    def score(
        self,
        rows: Sequence[ScoredRow],
        temperature: float = 1.0,
        entropy: bool = False,
        *,
        kept: int | None = None,
        bias: Tensor | None = None,
        value: Value | None = None,
    ) -> TokenLogprobs:
        """`forward.compute_logprobs` of the model."""
        policy = self.policy
        return forward.compute_logprobs(
            policy.model, rows, policy.device, temperature, entropy, kept=kept, bias=bias, value=value
        )

    def add_up(self, numbers: Sequence[float]) -> list[float]:
        """The sums of numbers over all shares."""
        return list(numbers)

    def add_up_tensors(self, parts: list[Tensor]) -> list[Tensor]:
        """The sums of tensors over all shares."""
        return parts

    @contextlib.contextmanager
    def leave_out_parameters(self) -> Iterator[None]:
        """A context in which no gradients of the parameters are computed."""
        parameters = self.policy.parameters()
        for parameter in parameters.values():
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters.values():
                parameter.requires_grad_(True)


Passes: TypeAlias = "WholePasses | ShardedPolicy"


def get_passes(policy: TrainablePolicy) -> Passes:
    """The passes of a policy; a sharded policy provides its own."""
    return cast("ShardedPolicy", policy) if hasattr(policy, "iter_batches") else WholePasses(policy)


def clip_gradients(parameters: Sequence[torch.Tensor], most: float | None) -> float:
    """Scale the gradient down to the norm `most` if its norm is larger; returns the norm before scaling."""
    norm = torch.nn.utils.clip_grad_norm_(list(parameters), most or float("inf"))
    return to_number(norm)


def to_number(tensor: Tensor) -> float:
    """A tensor with one element as a number, also if the tensor is sharded over several devices."""
    join = getattr(tensor, "full_tensor", None)
    return float(tensor if join is None else join())
