"""HACPO: different agents answer the same public tasks, and each learns from all answers (Zhang et al. 2026, arXiv:2603.02604).

    server   P_j = mean share of right answers of client j in its last `window` public steps
    server   send every answer to all other clients, and to client k the ratio c_j = P_j / P_k of each author j
    client   group of a task: its own G answers and those of the others, with rewards R_i of authors j(i)
    client   baseline = mean of R_i / c_j(i);  A_i = (R_i - baseline) / (std of R + 1e-6), the sample's deviation
    client   s_i = exp(mean log-prob of answer i under k, in k's tokens - that under its author, in the author's tokens)
    client   own answers:      min(s A, clip(s, 1 - low, 1 + high) A)                                  GSPO
             others' answers:  clip(s, 1 - delta + m * delta_step, 1) * sg[the same]^alpha * c_j * A
             m is the number of mini-batches of this step that moved the weights before; sg stops the gradient

A group whose rewards are all equal, or not all finite, has zero advantages, as everywhere in this package: otherwise the baseline
would make a signal out of the ratios alone. Ratios are clipped to `ratio_bounds`, also in the baseline. The authors' code does
both; the paper states neither. In episodes of one turn s_i is the paper's ratio. In episodes of several turns the author sends a
mean log-prob for each turn, and the receiver computes the ratio over its own tokens of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.algorithms.card import Scale
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.algorithms.sharing import Answers, Chosen, Sharing, SharingSettings
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import Stream
from fedagentgym.learning.advantages import EPSILON
from fedagentgym.learning.losses import GSPO, Clip, PolicyTerms, Tokens, check_clip
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import FOREIGN, Group, Trajectory, map_tokens_to_turns

if TYPE_CHECKING:
    from fedagentgym.learning.learner import LocalTraining

MIN_CAPABILITY = 1e-8
"""The capability of a client without a right answer."""
CAPABILITY = "capability"
"""The shares of right answers by client, in the server's memory."""


class HACPOLoss(GSPO):
    """GSPO for own rows; for those of other agents the ratio is bounded by 1, and weighted by a power of itself."""

    name: Literal["hacpo"] = "hacpo"  # type: ignore[assignment]
    alpha: float = 1.0
    delta: float = 0.2
    delta_step: float = 0.0

    def compute(self, tokens: Tokens, clip: Clip) -> PolicyTerms:
        own = super().compute(tokens, clip)
        if tokens.foreign is None:
            return own
        ratio = tokens.compute_ratio("sequence")
        low = min(1.0, 1.0 - self.delta + tokens.update * self.delta_step)
        bounded = ratio.clamp(low, 1.0)
        others = -bounded * bounded.detach() ** self.alpha * tokens.advantages
        outside = (ratio < low) | (ratio > 1.0)
        clipped = None if own.clipped is None else outside.where(tokens.foreign, own.clipped)
        return PolicyTerms(others.where(tokens.foreign, own.loss), ratio, clipped)


class HACPOSettings(SharingSettings):
    """`algorithm: {name: hacpo, public_tasks: 4}`."""

    name: Literal["hacpo"] = "hacpo"
    window: int = Field(default=5, ge=1, description="public steps over which capability is averaged")
    ratio_bounds: tuple[float, float] = Field(
        default=(0.1, 10.0), description="smallest and largest ratio of capabilities"
    )
    alpha: float = Field(default=1.0, ge=0, description="power of the ratio that weighs an answer of another client")
    delta: float = Field(default=0.2, ge=0, le=1, description="the ratio of such an answer is at least 1 - delta")
    delta_step: float = Field(
        default=0.0, ge=0, description="by how much this bound rises with every mini-batch of a step"
    )
    clip: tuple[float, float] = Field(default=(3e-4, 4e-4), description="clip of own answers, as for gspo")

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        low, high = self.ratio_bounds
        if not 0 < low <= 1 <= high:
            raise ValueError(f"ratio_bounds lie around 1 and above 0, got {low:g} and {high:g}")
        check_clip(self.clip)
        return self


class HACPO(Sharing[HACPOSettings]):
    """Every client learns from the answers of all clients, weighted by their authors' capabilities."""

    settings_class: ClassVar[type[Settings]] = HACPOSettings

    def __init__(self, settings: HACPOSettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        usual = LearningSettings()
        for name in ("loss", "clip", "dual_clip"):
            if getattr(runtime.learning, name) != getattr(usual, name):
                raise OptionError(
                    f"hacpo has its own policy loss, clipped by algorithm.clip: leave out learning.{name}"
                )

    @property
    def learning(self) -> LearningSettings:
        own = self.settings
        loss = HACPOLoss(alpha=own.alpha, delta=own.delta, delta_step=own.delta_step, clip=own.clip)
        return self.runtime.learning.model_copy(update={"loss": loss})

    def draw_tasks(self, clients: Sequence[int], draw: Stream) -> dict[int, list[str]]:
        """The same tasks for all."""
        return dict.fromkeys(clients, self.draw_public_tasks(draw))

    def choose(
        self, answers: Answers, memory: dict[str, Any], draw: Stream
    ) -> tuple[dict[int, list[Chosen]], dict[int, dict[str, Any]]]:
        """All answers of the others, and the ratios of capabilities."""
        known = {name: list(shares) for name, shares in memory.get(CAPABILITY, {}).items()}
        for client, own in answers.items():
            right = float(np.mean([one.graded.success for group in own for one in group]))
            known[str(client)] = [*known.get(str(client), []), right][-self.settings.window :]
        memory[CAPABILITY] = known
        able = {client: max(float(np.mean(known[str(client)])), MIN_CAPABILITY) for client in answers}
        chosen = {
            client: [
                Chosen(number, author, one)
                for author, theirs in answers.items()
                if author != client
                for number, group in enumerate(theirs)
                for one in group
            ]
            for client in answers
        }
        low, high = self.settings.ratio_bounds
        ratios = {
            client: {str(author): min(max(able[author] / able[client], low), high) for author in answers}
            for client in answers
        }
        return chosen, {client: {"ratios": found} for client, found in ratios.items()}

    def learn_from(
        self,
        local: LocalTraining,
        own: Sequence[Group],
        others: Sequence[tuple[Trajectory, Mapping[str, Any]]],
        control: Mapping[str, Any],
    ) -> dict[str, float]:
        """One step on the own answers and those of all others, task by task."""
        groups: list[Group] = []
        advantages: list[list[float]] = []
        for number, mine in enumerate(own):
            theirs = [(one, plain) for one, plain in others if int(plain["group"]) == number]
            ratios = [1.0] * len(mine) + [float(control["ratios"][str(plain["author"])]) for _, plain in theirs]
            group = (*mine, *(set_behaviour(one, plain["logprobs"]) for one, plain in theirs))
            rewards = [float(part.sum()) for part in local.compute_rewards(group)]
            groups.append(group)
            advantages.append(compute_advantages(rewards, ratios).tolist())
        return local.update(groups, advantages=advantages).metrics

    @classmethod
    def count_shared(cls, settings: HACPOSettings, scale: Scale) -> int:
        return settings.public_tasks * scale.learning.group_size * (scale.asked - 1)


def compute_advantages(rewards: Sequence[float], ratios: Sequence[float]) -> NDArray[np.float64]:
    """The advantages of the answers to one task at a client, each times the ratio of its author's capability to the client's.

    >>> compute_advantages([1, 0, 1, 0], [1, 1, 2, 2]).round(3).tolist()
    [1.083, -0.65, 2.165, -1.299]
    """
    earned, scale = np.asarray(rewards, dtype=np.float64), np.asarray(ratios, dtype=np.float64)
    if not len(earned) or not np.isfinite(earned).all() or np.ptp(earned) == 0:
        return np.zeros(len(earned))
    baseline = (earned / scale).mean()
    return np.asarray(scale * (earned - baseline) / (earned.std(ddof=1) + EPSILON))


def set_behaviour(trajectory: Trajectory, means: Sequence[float]) -> Trajectory:
    """An answer of another client, marked as such, whose tokens have the mean log-prob of their turn under its author."""
    segments = []
    for segment, owner in zip(trajectory.segments, map_tokens_to_turns(trajectory), strict=True):
        logprobs = segment.logprobs.copy()
        logprobs[segment.mask] = np.asarray(means, dtype=np.float32)[owner]
        segments.append(segment._replace(logprobs=logprobs))
    return replace(trajectory, segments=tuple(segments), labels={**trajectory.labels, FOREIGN: True})
