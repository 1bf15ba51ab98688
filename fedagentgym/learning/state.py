"""The state that a learner keeps between calls, and the reports of its steps: plain values and arrays, which need no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.shorten import show_fields
from fedagentgym.base.statistics import mean
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.agents.protocols import Player, TrainablePolicy

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class SiteState:
    """The state of a learner from one call to the next: arrays and a number, which can be stored and loaded anywhere.

    Attributes:
        weights: The trainable parameters.
        optimizer: The moments of the optimizer; empty at the start.
        anchor: The weights at the start of the round, if they differ from `weights` and a penalty refers to them.
        step: Number of policy steps so far; the learning rate and the random streams depend on it.
    """

    weights: Arrays
    optimizer: Arrays = field(default_factory=dict)
    anchor: Arrays = field(default_factory=dict)
    step: int = 0

    def __repr__(self) -> str:
        return show_fields(self)

    def to_plain(self) -> dict[str, Any]:
        """Return the state as a mapping of plain values and arrays, for a message."""
        parts = {"weights": dict(self.weights), "optimizer": dict(self.optimizer), "anchor": dict(self.anchor)}
        return parts | {"step": self.step}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SiteState:
        """Make a state from the values of `to_plain`.

        Args:
            plain: The mapping that `to_plain` returned.

        Returns:
            The state.

        Raises:
            DataError: If the mapping is malformed.
        """
        try:
            step = int(plain["step"])
            parts = [dict(plain[name]) for name in ("weights", "optimizer", "anchor")]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not the state of a site: {type(error).__name__} {error}") from None
        return cls(parts[0], parts[1], parts[2], step)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The result of one step. `metrics` are floats; `gradients` holds the requested per-objective gradients."""

    metrics: dict[str, float]
    groups: tuple[Group, ...] = ()
    gradients: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocalReport:
    """The result of several steps: the mean of their metrics, one dict per step, and the last step's episodes."""

    metrics: dict[str, float]
    steps: tuple[dict[str, float], ...]
    groups: tuple[Group, ...] = ()


COSTS = ("episodes", "scored", "env_steps", "optimizer_steps")
"""The metrics that count costs: episodes to learn from, episodes that are only scored, steps of the environment, and steps of the
optimizer."""
SUMMED_METRICS = frozenset({"update/skipped", "update/empty", "groups", "groups/constant", *COSTS})
"""Metrics that are counts: a report over several steps sums them."""

AfterStep = Callable[[StepReport], "Mapping[str, float] | None"]
"""Called after each step of `run`; a returned mapping becomes the objective weights from the next step on (FedMOA)."""


def get_trainable_policy(agent: Player) -> TrainablePolicy:
    """The policy of an agent whose weights are in this process; any other agent is refused."""
    from fedagentgym.agents.protocols import TrainablePolicy as Trainable

    policy = getattr(agent, "policy", None)
    if not isinstance(policy, Trainable):
        raise OptionError(
            f"the agent {agent.name!r} cannot be trained: only a language model loaded in this process can"
        )
    return policy


def mean_metrics(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the steps that report it; counts are summed."""
    seen: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            seen.setdefault(name, []).append(value)
    return {name: float(sum(series)) if name in SUMMED_METRICS else mean(series) for name, series in seen.items()}
