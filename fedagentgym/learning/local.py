"""One site's training loop: the work of a client (or of the only site of a centralized run) between two messages.

A `LocalTraining` belongs to the resident worker: one agent (a model in memory), one environment with the site's tasks, the
settings. The state of the *site* is a `SiteState`: plain arrays and numbers that can be encoded, stored, moved to another worker
and loaded again. The loop is short::

    start = SiteState(weights=global_weights, step=round * local_steps)
    local = LocalTraining(agent, env, settings, start=start, run_steps=rounds * local_steps)
    report = local.run(local_steps, seed=derive(run_seed, "client", client))
    send(local.get_state().weights, report.metrics)

and the finer calls that other methods need are the parts of `run`::

    groups = local.collect_groups(seed)                                 # play: tasks_per_step x group_size episodes
    report = local.update(groups)                                # learn from them
    report = local.update(groups, advantages=given)              # ... from advantages that another program computed
    report = local.update(groups, weights={"accuracy/math": 0.7, "format": 0.3}, gradients_of=("accuracy/math", "format"))
    groups = local.recompute_logprobs(groups)                              # log-probs of other people's tokens under this policy

Randomness: every draw of step s comes from streams of (seed, s), where s is the run-wide step of the state. The same state and
seed give the same result on any worker; a caller who wants new draws per round or client derives the seed accordingly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.agents.protocols import Player
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.process import tell_step
from fedagentgym.base.statistics import mean
from fedagentgym.base.streams import derive, stream
from fedagentgym.learning.advantages import (
    compute_format_penalties,
    compute_training_rewards,
    group_advantages,
    is_constant,
    objective_values,
    spread_advantages,
)
from fedagentgym.learning.rollouts import Rollouts, collect
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group, PerTurn, build_rows

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.agents.protocols import TrainablePolicy
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.learning.penalties import Penalty

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class SiteState:
    """The state of a site from one call to the next: arrays and a number, which can be stored and loaded anywhere.

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

    def to_plain(self) -> dict[str, Any]:
        """Return the state as a mapping of plain values and arrays, for a message."""
        parts = {"weights": dict(self.weights), "optimizer": dict(self.optimizer), "anchor": dict(self.anchor)}
        return parts | {"step": self.step}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SiteState:
        """Make a state from the values of `to_plain`.

        Args:
            plain: The values.

        Returns:
            The state.

        Raises:
            DataError: If they are malformed.
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
"""The metrics that count what was taken: episodes to learn from, episodes that are only scored, steps of the environment, and
steps of the optimizer."""
SUMMED_METRICS = frozenset({"update/skipped", "update/empty", "groups", "groups/constant", *COSTS})
"""Metrics that are counts: a report over several steps sums them."""

AfterStep = Callable[[StepReport], "Mapping[str, float] | None"]
"""Called after each step of `run`; a returned mapping becomes the objective weights of the next step (FedMOA)."""


class LocalTraining:
    """The training loop of one site: load a state, play, learn, read the state back.

    `run` does several steps. Methods that intervene call its parts: `collect_groups` plays, `update` learns. Several learners
    may share an agent, in any order of calls: each plays, learns and answers with weights of its own. Every draw of step s
    follows from the seed and s, so that a state and a seed give the same result in any process.

    Args:
        agent: A language model whose weights are in this process.
        env: The environment with the site's tasks.
        settings: The settings of a policy step.
        start: The state to begin with; by default the weights that the agent's model holds.
        run_steps: Number of steps of the whole run, for a learning rate that decays.
        penalties: Terms of the loss besides the configured ones.
        base: Weights of the reference of `kl: {reference: base}`; by default the agent's present ones.

    Attributes:
        step: Number of steps so far.

    Raises:
        OptionError: If the agent cannot be trained.
    """

    def __init__(
        self,
        agent: TokenAgent,
        env: TextEnv,
        settings: LearningSettings,
        *,
        start: SiteState | None = None,
        run_steps: int | None = None,
        penalties: Sequence[Penalty] = (),
        base: Arrays | None = None,
    ) -> None:
        from fedagentgym.learning.penalties import make_kl
        from fedagentgym.learning.update import PolicyUpdate

        self._agent, self.env, self.settings = agent, env, settings
        self.step = 0 if start is None else start.step
        self._run_steps = run_steps
        policy = get_trainable_policy(agent)
        if settings.kl.coefficient > 0:
            penalties = (make_kl(settings.kl, base or policy.get_weights()), *penalties)
        given = None if start is None else (start.weights, start.optimizer, start.anchor)
        self._updater = PolicyUpdate(policy, agent.decoding, settings, start=given, penalties=penalties)

    @property
    def agent(self) -> TokenAgent:
        """The agent, with this learner's present weights in its model."""
        self._updater.acquire()
        return self._agent

    def load_state(self, state: SiteState) -> None:
        """Continue from a state.

        Args:
            state: The state.
        """
        self._updater.load(state.weights, state.optimizer, state.anchor)
        self.step = state.step

    def get_state(self, *, optimizer: bool | None = None, anchor: bool = False) -> SiteState:
        """Return the present state.

        Args:
            optimizer: Whether the moments of the optimizer are included; by default `settings.keep_optimizer`.
            anchor: Whether the weights at the start of the round are included, for a site that is half-way through its round.

        Returns:
            The state, with copies of the arrays.
        """
        keep = self.settings.keep_optimizer if optimizer is None else optimizer
        return SiteState(
            weights=self._updater.get_weights(),
            optimizer=self._updater.get_optimizer_state() if keep else {},
            anchor=self._updater.get_anchor_weights() if anchor else {},
            step=self.step,
        )

    def run(
        self,
        steps: int,
        *,
        seed: int,
        weights: Mapping[str, float] | None = None,
        gradients_of: Sequence[str] = (),
        after_step: AfterStep | None = None,
    ) -> LocalReport:
        """Play and learn for several steps.

        Args:
            steps: Number of steps.
            seed: Seed of all draws.
            weights: Weights of the objectives in place of the configured ones.
            gradients_of: Objectives whose gradient at the last decoder block is computed too.
            after_step: Called with the report of each step; a mapping that it returns becomes the weights of the objectives.

        Returns:
            The mean of the `metrics` (counts are summed), the metrics of each of the `steps`, and the last step's `groups`.
        """
        metrics: list[dict[str, float]] = []
        groups: tuple[Group, ...] = ()
        for number in range(1, steps + 1):
            tell_step(number, steps)
            rollouts = self.collect_rollouts(seed)
            report = self.update(rollouts.groups, weights=weights, gradients_of=gradients_of)
            report = StepReport(rollouts.compute_metrics() | report.metrics, rollouts.groups, report.gradients)
            metrics.append(report.metrics)
            groups = report.groups
            answer = after_step(report) if after_step is not None else None
            weights = weights if answer is None else answer
        return LocalReport(mean_metrics(metrics), tuple(metrics), groups)

    def collect_rollouts(
        self,
        seed: int,
        *,
        tasks: Sequence[str] | None = None,
        group_size: int | None = None,
        env: TextEnv | None = None,
    ) -> Rollouts:
        """Play the episodes of the present step.

        Args:
            seed: Seed of all draws.
            tasks: Ids of the tasks; by default drawn with replacement from the site's pool.
            group_size: Episodes of each task; by default the configured number.
            env: The environment of the tasks; by default the site's.

        Returns:
            The episodes in groups, and how long they took.
        """
        chosen = self.draw_tasks(seed) if tasks is None else tuple(tasks)
        return collect(
            self.agent,
            self.env if env is None else env,
            chosen,
            group_size=group_size or self.settings.group_size,
            seed=derive(seed, "play", self.step),
            parallel=self.settings.parallel_episodes,
        )

    def collect_groups(
        self, seed: int, *, tasks: Sequence[str] | None = None, group_size: int | None = None
    ) -> tuple[Group, ...]:
        """Play the episodes of the present step, as `collect_rollouts` does.

        Args:
            seed: Seed of all draws.
            tasks: Ids of the tasks; by default drawn with replacement from the site's pool.
            group_size: Episodes of each task; by default the configured number.

        Returns:
            The episodes in groups, for `update`.
        """
        return self.collect_rollouts(seed, tasks=tasks, group_size=group_size).groups

    def draw_tasks(self, seed: int) -> tuple[str, ...]:
        """Draw the tasks of the present step, with replacement.

        Args:
            seed: Seed of all draws.

        Returns:
            Their ids.
        """
        positions = stream(seed, "tasks", self.step).integers(len(self.env.pool), self.settings.tasks_per_step)
        return tuple(self.env.pool.ids[int(position)] for position in positions)

    def update(
        self,
        groups: Sequence[Group],
        *,
        advantages: Sequence[Sequence[float] | PerTurn] | None = None,
        weights: Mapping[str, float] | None = None,
        gradients_of: Sequence[str] = (),
    ) -> StepReport:
        """Take one policy step on episodes of any player; their log-probabilities are taken as the behaviour policy's.

        Args:
            groups: The episodes.
            advantages: For each group one number per episode, or one array over its turns, in place of those from the rewards.
            weights: Weights of the objectives in place of the configured ones.
            gradients_of: Objectives whose gradient at the last decoder block is computed too.

        Returns:
            The `metrics` of the step, the `groups`, and the `gradients` that were asked for.
        """
        returns = [self._compute_returns(group, weights) for group in groups]
        if advantages is None:
            chosen = [
                group_advantages(group, earned, self.settings.advantage, penalties)
                for group, (earned, penalties) in zip(groups, returns, strict=True)
            ]
        else:
            chosen = [
                spread_advantages(group, given, "advantages=") for group, given in zip(groups, advantages, strict=True)
            ]
        gradients = {}
        for name in gradients_of:
            alone = [
                group_advantages(group, objective_values(group, name), self.settings.advantage) for group in groups
            ]
            gradients[name] = self._updater.compute_bias_gradient(build_rows(groups, alone))
        rate = self.settings.schedule.compute_factor(self.step, self._run_steps)
        metrics = self._updater.train_step(build_rows(groups, chosen), rate, order=self.step)
        self.step += 1
        constant = sum(is_constant(*pair) for pair in returns)
        metrics |= {"groups": float(len(groups)), "groups/constant": float(constant)}
        for name in self.resolve_objective_weights(weights):
            metrics[f"reward/{name}"] = mean(
                [float(part.sum()) for group in groups for part in objective_values(group, name)]
            )
        learned = [
            earned if penalties is None else self.compute_rewards(group, weights)
            for group, (earned, penalties) in zip(groups, returns, strict=True)
        ]
        metrics["reward/learned"] = mean([float(part.sum()) for reward in learned for part in reward])
        return StepReport(metrics, tuple(groups), gradients)

    def compute_rewards(self, group: Group, weights: Mapping[str, float] | None = None) -> PerTurn:
        """Compute the learned reward of each turn.

        Args:
            group: The episodes of one task.
            weights: Weights of the objectives in place of the configured ones.

        Returns:
            For each episode an array over its turns.
        """
        return compute_training_rewards(group, self.resolve_objective_weights(weights), self.settings.format_penalty)

    def compute_advantages(self, group: Group, weights: Mapping[str, float] | None = None) -> PerTurn:
        """Compute the advantage of each turn.

        Args:
            group: The episodes of one task.
            weights: Weights of the objectives in place of the configured ones.

        Returns:
            For each episode an array over its turns.
        """
        rewards, penalties = self._compute_returns(group, weights)
        return group_advantages(group, rewards, self.settings.advantage, penalties)

    def _compute_returns(self, group: Group, weights: Mapping[str, float] | None) -> tuple[PerTurn, PerTurn | None]:
        """Return what advantages are computed from: the learned rewards, and the penalties of single turns, if kept separate."""
        if self.settings.format_penalty_on == "episode":
            return self.compute_rewards(group, weights), None
        rewards = compute_training_rewards(group, self.resolve_objective_weights(weights), 0.0)
        return rewards, compute_format_penalties(group, self.settings.format_penalty)

    def resolve_objective_weights(self, weights: Mapping[str, float] | None = None) -> Mapping[str, float]:
        """Return the weights of the objectives.

        Args:
            weights: Those that a caller gave.

        Returns:
            The given weights, or the configured ones.
        """
        return {part.name: part.weight for part in self.settings.objectives} if weights is None else weights

    def recompute_logprobs(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Replace the log-probabilities of episodes by those under the present policy, so that its ratio starts at 1.

        Args:
            groups: The episodes, such as those of another player.

        Returns:
            The same episodes with other log-probabilities.
        """
        return self._updater.recompute_logprobs(groups)


def get_trainable_policy(agent: Player) -> TrainablePolicy:
    """The policy of an agent whose weights are in this process."""
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
