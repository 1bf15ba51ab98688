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
    report = local.update(groups, advantages=given)              # ... from advantages that somebody else computed
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

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.process import tell_step
from fedagentgym.base.statistics import mean
from fedagentgym.base.streams import derive, stream
from fedagentgym.learning.advantages import group_advantages, is_constant, spread_advantages
from fedagentgym.learning.objectives import (
    PerTurn,
    compute_format_penalties,
    compute_training_rewards,
    objective_values,
)
from fedagentgym.learning.rollouts import Player, Rollouts, collect
from fedagentgym.learning.rows import build_rows
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.agents.protocols import TrainablePolicy
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.learning.penalties import Penalty

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class SiteState:
    """Everything that a site keeps from one call to the next; `to_plain()` is what is encoded.

    `weights` are the trainable parameters. `optimizer` (AdamW's moments) is empty at the start. `anchor` holds the weights at the
    start of the round, if they differ from `weights` and a penalty still refers to them. `step` counts the steps of the
    run so far: the learning-rate schedule and the random streams depend on it.
    """

    weights: Arrays
    optimizer: Arrays = field(default_factory=dict)
    anchor: Arrays = field(default_factory=dict)
    step: int = 0

    def to_plain(self) -> dict[str, Any]:
        parts = {"weights": dict(self.weights), "optimizer": dict(self.optimizer), "anchor": dict(self.anchor)}
        return parts | {"step": self.step}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SiteState:
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


SUMMED_METRICS = frozenset({"update/skipped", "update/empty", "groups", "groups/constant", "episodes", "env_steps"})
"""Metrics that are counts: a report over several steps sums them."""

AfterStep = Callable[[StepReport], "Mapping[str, float] | None"]
"""Called after each step of `run`; a returned mapping becomes the objective weights of the next step (FedMOA)."""


class LocalTraining:
    """The loop of one site: load a state, play, learn, read the state back.

    Several of them may share an agent, in any order of calls: each plays, learns and answers with weights of its own.

    It begins at `start`, by default with the weights that the agent's model holds.
    `run_steps` is the length of the whole run, for a schedule that decays. `base` are the weights of the frozen reference of
    `kl: {reference: base}`; by default the agent's current ones. `penalties` are terms of the loss besides the configured ones
    (`learning/penalties.py`).
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
        """The agent, with the learner's present weights in its model."""
        self._updater.acquire()
        return self._agent

    def load_state(self, state: SiteState) -> None:
        """Load a site: its weights, its optimizer if it kept one, the round's starting point, its step."""
        self._updater.load(state.weights, state.optimizer, state.anchor)
        self.step = state.step

    def get_state(self, *, optimizer: bool | None = None, anchor: bool = False) -> SiteState:
        """The current state of the site, with the optimizer if `keep_optimizer` or the argument says so; `anchor=True` keeps the
        round's starting point too, for a site that is half-way through its round."""
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
        """Several steps of play and learning. `weights` replaces the configured weights of the objectives."""
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
        """The episodes of the present step: of the given tasks of an environment (by default the site's), or of tasks drawn
        with replacement from the site's pool."""
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
        """`collect_rollouts` without its statistics."""
        return self.collect_rollouts(seed, tasks=tasks, group_size=group_size).groups

    def draw_tasks(self, seed: int) -> tuple[str, ...]:
        """The ids of the present step's tasks."""
        return draw_tasks(self.env, self.settings, seed, self.step)

    def update(
        self,
        groups: Sequence[Group],
        *,
        advantages: Sequence[Sequence[float] | PerTurn] | None = None,
        weights: Mapping[str, float] | None = None,
        gradients_of: Sequence[str] = (),
    ) -> StepReport:
        """One policy step on these groups, from any player. Their segments' log-probs are taken as the behaviour policy's.

        `advantages` gives one number (or one array over turns) per trajectory of each group, in place of those from the rewards.
        `gradients_of` names objectives whose gradient at the last decoder block is computed as well.
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
        learned = [self.compute_rewards(group, weights) for group in groups]
        metrics["reward/learned"] = mean([float(part.sum()) for reward in learned for part in reward])
        return StepReport(metrics, tuple(groups), gradients)

    def compute_rewards(self, group: Group, weights: Mapping[str, float] | None = None) -> PerTurn:
        """The learned reward of each turn under the given or the configured objective weights."""
        return compute_training_rewards(group, self.resolve_objective_weights(weights), self.settings.format_penalty)

    def compute_advantages(self, group: Group, weights: Mapping[str, float] | None = None) -> PerTurn:
        """The advantage of each turn under the given or the configured objective weights."""
        rewards, penalties = self._compute_returns(group, weights)
        return group_advantages(group, rewards, self.settings.advantage, penalties)

    def _compute_returns(self, group: Group, weights: Mapping[str, float] | None) -> tuple[PerTurn, PerTurn | None]:
        """What advantages are computed from: the learned rewards, and the penalties of single turns, if kept separate."""
        if self.settings.format_penalty_on == "episode":
            return self.compute_rewards(group, weights), None
        rewards = compute_training_rewards(group, self.resolve_objective_weights(weights), 0.0)
        return rewards, compute_format_penalties(group, self.settings.format_penalty)

    def resolve_objective_weights(self, weights: Mapping[str, float] | None = None) -> Mapping[str, float]:
        """The given weights, or the configured ones."""
        return {part.name: part.weight for part in self.settings.objectives} if weights is None else weights

    def recompute_logprobs(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The same groups with the behaviour log-probs recomputed under the present policy (its ratio then starts at 1)."""
        return self._updater.recompute_logprobs(groups)


def draw_tasks(env: TextEnv, settings: LearningSettings, seed: int, step: int) -> tuple[str, ...]:
    """The ids of a step's tasks, drawn with replacement."""
    positions = stream(seed, "tasks", step).integers(len(env.pool), settings.tasks_per_step)
    return tuple(env.pool.ids[int(position)] for position in positions)


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
