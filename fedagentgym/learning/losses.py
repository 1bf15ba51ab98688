"""Policy losses, which compute the loss of each token from its advantage and the ratio of its probabilities.

A policy loss is a settings class, registered by name: its fields are its settings, and its `compute` gives the loss of every
token. With the ratio w = exp(logprob - behaviour) of a token, the ratio s = exp(mean of log w) of a row, and the advantage A:

    token, sequence, constant   -min(w A, clip(w, 1 - low, 1 + high) A)    PPO; the name says what is averaged
    gspo                        the same with s in place of w              GSPO
    cispo                       -sg[min(w, high)] A logprob                CISPO
    sapo                        -sigmoid(t (w - 1)) 4 / t A                SAPO
    vespo                       -sg[phi(product of w over the row)] A logprob   VESPO
    reinforce                   -A logprob                                 no ratio

`sg` stops the gradient. Nothing here needs torch before a loss is computed.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.base.errors import OptionError
from fedagentgym.base.imports import Registry
from fedagentgym.base.settings import NamedSettings
from fedagentgym.base.shorten import show_fields

if TYPE_CHECKING:
    from torch import Tensor

Averaging = Literal["token", "sequence", "constant"]
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Tokens:
    """The agent's own tokens of some rows, row after row.

    Attributes:
        logprobs: Log-probability of each token under the policy that learns; only these have a gradient.
        behaviour: The same under the policy that played.
        advantages: The advantage of each token.
        lengths: Number of tokens of each row.
        correction: With `learning.correction`, the weight of each token; the learner multiplies the loss by it.
        foreign: Whether each token is from the reply of another policy, tokenized anew; None if no token is.
        update: Number of mini-batches of this policy step that have moved the weights.
    """

    logprobs: Tensor
    behaviour: Tensor
    advantages: Tensor
    lengths: tuple[int, ...]
    correction: Tensor | None = None
    foreign: Tensor | None = None
    update: int = 0

    def __repr__(self) -> str:
        return show_fields(self)

    def sum_rows(self, values: Tensor) -> Tensor:
        """Return for each token the sum of these values over the tokens of its row."""
        import torch

        sums = [part.sum().expand(len(part)) for part in torch.split(values, list(self.lengths))]
        return torch.cat(sums) if sums else values  # without rows there are no values

    def compute_ratio(self, level: Literal["token", "sequence"] = "token") -> Tensor:
        """Return the importance ratio of each token: its own, or the geometric mean over its row. Exponents are bounded."""
        ratio = self.logprobs - self.behaviour
        if level == "sequence":
            ratio = self.sum_rows(ratio) / self.sum_rows(self.logprobs.new_ones(len(self.logprobs)))
        return ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


class Clip(NamedTuple):
    """The ratio is clipped to [1 - low, 1 + high]; with a negative advantage A, the loss is at most `dual` times |A|."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None


class PolicyTerms(NamedTuple):
    """The result of `PolicyLoss.compute`, with one value per token.

    Attributes:
        loss: The policy's loss.
        ratio: The ratio that the loss uses, for the metrics.
        clipped: Whether a bound removes the token's gradient, for the metrics; in `cispo`, which removes none, whether a bound
            changes the token's weight. None for a loss without bounds.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor | None = None

    def __repr__(self) -> str:
        return show_fields(self)


AVERAGE = (
    "token: mean over all tokens; sequence: mean over each row, then over rows; constant: sum over `length` times rows"
)
"""The meaning of `average` in every loss that has it."""


class BaseLoss(NamedSettings):
    """Base class of all policy losses. The name of a loss says how it is averaged, or it derives from `PolicyLoss`."""

    length: int = Field(default=512, ge=1, description="constant: length by which the sum of every row is divided")
    rows: int | None = Field(
        default=None,
        ge=1,
        description="token: mean over the tokens of each part of this many rows, then over the parts, as in code that averages "
        "each micro-batch; null: over all tokens of the mini-batch",
    )
    uses_clip: ClassVar[bool] = False
    """True if the loss uses `learning.clip` and `learning.dual_clip`."""
    corrects_itself: ClassVar[bool] = False
    """True if `compute` uses `tokens.correction`, so that the learner does not multiply by it."""

    @property
    @abstractmethod
    def averaging(self) -> Averaging:
        """The way in which the losses of tokens are averaged."""

    @abstractmethod
    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        """Compute the loss of every token, which the learner averages.

        Args:
            tokens: The agent's own tokens of some rows. A mini-batch is computed in several passes of whole rows, as memory
                allows, so the loss of a row must not depend on other rows; rows without advantages are left out.
            clip: `learning.clip` and `learning.dual_clip`, for losses with `uses_clip`.

        Returns:
            The loss of each token, with its ratio and its clipping for the metrics.
        """

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if self.rows is not None and self.averaging != "token":
            raise ValueError(f"rows cuts the mean over tokens into parts: it cannot be combined with {self.averaging}")
        return self


class ClippedLoss(BaseLoss):
    """PPO's clipped surrogate; its three names say how the losses of tokens are averaged."""

    name: Literal["token", "sequence", "constant"] = "token"
    uses_clip: ClassVar[bool] = True

    @property
    def averaging(self) -> Averaging:
        return self.name

    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        terms = clip_surrogate(tokens.compute_ratio(), tokens.advantages, (clip.low, clip.high))
        if clip.dual is None:
            return terms
        assert terms.clipped is not None
        bound = -clip.dual * tokens.advantages
        capped = (tokens.advantages < 0) & (terms.loss > bound)
        return terms._replace(loss=bound.where(capped, terms.loss), clipped=terms.clipped | capped)


class PolicyLoss(BaseLoss):
    """Base class of policy losses: derive a class, write `compute`, register it with `register_loss`.

    The fields are the loss's settings in configurations; `average`, `length` and `rows` are inherited.
    `fedagentgym.testing.check_loss` tests a loss.

    Examples:
        >>> from fedagentgym.learning import PolicyLoss, PolicyTerms
        >>> class Unclipped(PolicyLoss):
        ...     name: str = "unclipped"
        ...     def compute(self, tokens, clip):
        ...         ratio = tokens.compute_ratio()
        ...         return PolicyTerms(-ratio * tokens.advantages, ratio)
    """

    average: Averaging = Field(
        default="token",
        description=AVERAGE,
    )

    @property
    def averaging(self) -> Averaging:
        """The way in which the losses of tokens are averaged: `average`."""
        return self.average


class GSPO(PolicyLoss):
    """The clipped surrogate with one ratio for all tokens of a row (arXiv:2507.18071)."""

    name: Literal["gspo"] = "gspo"
    average: Averaging = Field(default="sequence", description=AVERAGE)
    clip: tuple[float, float] = Field(
        default=(3e-4, 4e-4), description="the ratio of a row is clipped to [1 - low, 1 + high]"
    )
    gradient: Literal["sequence", "token"] = Field(
        default="sequence",
        description="gradient of the ratio; sequence: through all tokens of the row; token: through the token itself"
        " (GSPO-token), which differs where the advantages of a row's turns differ",
    )

    @model_validator(mode="after")
    def _check_clip(self) -> Self:
        check_clip(self.clip)
        return self

    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        ratio = tokens.compute_ratio("sequence")
        if self.gradient == "token":
            ratio = ratio.detach() * (tokens.logprobs - tokens.logprobs.detach()).exp()
        return clip_surrogate(ratio, tokens.advantages, self.clip)


class CISPO(PolicyLoss):
    """REINFORCE with bounded importance weights (arXiv:2506.13585): no token loses its gradient."""

    name: Literal["cispo"] = "cispo"
    high: float = Field(default=5.0, gt=0, description="largest weight of a token")
    low: float = Field(default=0.0, ge=0, description="smallest weight of a token")
    ratio: Literal["token", "sequence"] = Field(
        default="token", description="the weight: the token's own ratio, or its row's"
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low lies below high, got {self.low:g} and {self.high:g}")
        return self

    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        ratio = tokens.compute_ratio(self.ratio).detach()
        loss = -ratio.clamp(self.low, self.high) * tokens.advantages * tokens.logprobs
        return PolicyTerms(loss, ratio, (ratio > self.high) | (ratio < self.low))


class SAPO(PolicyLoss):
    """A sigmoid of the ratio in place of the clip (arXiv:2511.20347): the gradient fades with the distance from 1."""

    name: Literal["sapo"] = "sapo"
    average: Averaging = Field(default="sequence", description=AVERAGE)
    temperature_pos: float = Field(default=1.0, gt=0, description="how soon the gradient fades for positive advantages")
    temperature_neg: float = Field(
        default=1.05, gt=0, description="how soon the gradient fades for all other advantages"
    )
    ratio: Literal["token", "sequence"] = Field(
        default="token", description="the ratio in the loss: the token's own, or its row's"
    )

    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        ratio, better = tokens.compute_ratio(self.ratio), tokens.advantages > 0
        temperature = ratio.new_tensor(self.temperature_pos).where(better, ratio.new_tensor(self.temperature_neg))
        gate = (temperature * (ratio - 1)).sigmoid() * 4 / temperature
        return PolicyTerms(-gate * tokens.advantages, ratio)


class VESPO(PolicyLoss):
    """REINFORCE weighted by phi(w) = e^l w^k e^(-l w), where w is the ratio of the whole row (arXiv:2602.10693)."""

    name: Literal["vespo"] = "vespo"
    k_pos: float = Field(default=2.0, ge=0, description="power k for advantages of at least 0")
    lambda_pos: float = Field(default=3.0, ge=1e-4, description="decay l for advantages of at least 0")
    k_neg: float = Field(default=3.0, ge=0, description="power k for negative advantages")
    lambda_neg: float = Field(default=2.0, ge=1e-4, description="decay l for negative advantages")
    corrects_itself: ClassVar[bool] = True

    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        least = float(np.log(1e-8))  # bounds as in the authors' code
        log_ratio = (tokens.logprobs - tokens.behaviour).detach()
        log_row = tokens.sum_rows(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
        if tokens.correction is not None:
            log_row = log_row + tokens.sum_rows(tokens.correction.log().clamp(least, MAX_LOG_RATIO))
        log_row = log_row.clamp(least, MAX_LOG_RATIO)
        ratio, better = log_row.exp(), tokens.advantages >= 0
        power = ratio.new_tensor(self.k_pos).where(better, ratio.new_tensor(self.k_neg))
        decay = ratio.new_tensor(self.lambda_pos).where(better, ratio.new_tensor(self.lambda_neg))
        phi = (decay + power * log_row - decay * ratio).exp().nan_to_num(0.0, 0.0, 0.0)
        return PolicyTerms(-phi * tokens.advantages * tokens.logprobs, ratio)


class Reinforce(PolicyLoss):
    """The plain policy gradient: for one pass over episodes that the policy has just played."""

    name: Literal["reinforce"] = "reinforce"

    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        return PolicyTerms(-tokens.advantages * tokens.logprobs, tokens.compute_ratio().detach())


LOSSES = Registry("policy loss")
"""Name -> a class derived from `BaseLoss`; those of users derive from `PolicyLoss`."""
for _name, _loss in {
    **dict.fromkeys(("token", "sequence", "constant"), ClippedLoss),
    "gspo": GSPO,
    "cispo": CISPO,
    "sapo": SAPO,
    "vespo": VESPO,
    "reinforce": Reinforce,
}.items():
    LOSSES.register(_name, _loss)


def compute_terms(loss: BaseLoss, tokens: Tokens, clip: Clip) -> PolicyTerms:
    """The result of a loss's `compute`, checked to have one value per token, since other shapes would be broadcast to all tokens.

    Raises:
        OptionError: If the result is not `PolicyTerms`, or a part has another shape.
    """
    terms: object = loss.compute(tokens, clip)
    if not isinstance(terms, PolicyTerms):
        raise OptionError(f"policy loss {loss.name!r} must return PolicyTerms, got a {type(terms).__name__}")
    for part, value in terms._asdict().items():
        if getattr(value, "shape", None) != tokens.logprobs.shape and not (part == "clipped" and value is None):
            found = f"of shape {tuple(value.shape)}" if hasattr(value, "shape") else f"that is a {type(value).__name__}"
            raise OptionError(
                f"policy loss {loss.name!r} gives a {part} {found} to {len(tokens.logprobs)} tokens, not one value per token"
            )
    return terms


def check_clip(clip: tuple[float, float]) -> None:
    """Refuse bounds that do not enclose a ratio of 1, or whose lower end is not above 0."""
    low, high = clip
    if not (0 <= low < 1 and high >= 0):
        raise ValueError(f"clip is [low, high] with 0 <= low < 1 and high >= 0, got {list(clip)}")


def clip_surrogate(ratio: Tensor, advantages: Tensor, clip: tuple[float, float]) -> PolicyTerms:
    """PPO's clipped surrogate, as a loss: minus the smaller of ratio times advantage and clipped ratio times advantage."""
    low, high = clip
    loss = -(ratio * advantages).minimum(ratio.clamp(1 - low, 1 + high) * advantages)
    outside = ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))
    return PolicyTerms(loss, ratio, outside)


def clip_value_loss(values: Tensor, old: Tensor, target: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """The loss of each value, and whether clipping removes its gradient. The loss is half the larger of two squared errors: that
    of the value, and that of the value clipped to at most `clip` from the old one."""
    plain = (values - target).square()
    if clip is None:
        return plain / 2, plain.isinf()
    clipped = (values.maximum(old - clip).minimum(old + clip) - target).square()
    return plain.maximum(clipped) / 2, clipped > plain


class CorrectionSettings(NamedSettings):
    """Importance weights for the mismatch of rollout and training log-probs (truncated importance sampling)."""

    name: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        default="sequence_mask",
        description="the weight is exp(recomputed - recorded log-prob) of the token, or of its row; truncate: kept within the"
        " bounds; mask: 0 outside the bounds",
    )
    clip_min: float | None = Field(default=None, ge=0, description="smallest weight; null: none")
    clip_max: float | None = Field(default=3.0, gt=0, description="largest weight; null: none")

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.clip_min is not None and self.clip_max is not None and self.clip_min > self.clip_max:
            raise ValueError(f"clip_min must be at most clip_max, got {self.clip_min:g} and {self.clip_max:g}")
        return self

    def compute_weights(self, tokens: Tokens, played: Tensor) -> Tensor:
        """Compute the weight of each token.

        Args:
            tokens: The tokens; `behaviour` holds the recomputed log-probabilities.
            played: The log-probabilities that the rollout engine recorded.
        """
        gap = tokens.behaviour - played
        if self.name.startswith("sequence"):
            gap = tokens.sum_rows(gap)
        weight = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        least = 0.0 if self.clip_min is None else self.clip_min
        most = float("inf") if self.clip_max is None else self.clip_max
        if self.name.endswith("truncate"):
            return weight.clamp(least, most)
        return weight.masked_fill((weight < least) | (weight > most), 0.0)
