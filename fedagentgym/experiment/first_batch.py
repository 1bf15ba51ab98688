"""The first batch of a run: its episodes show whether the initial agent can learn anything by reinforcement learning.

Groups whose episodes all earn the same have no gradient. A task that is never solved in a group of attempts is not learned by
practice. Replies that the environment cannot read earn nothing, whatever they mean. A run that misses a gate would take its time
and not improve.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from fedagentgym.base import devices
from fedagentgym.base.errors import DataError, OptionError, UnknownNameError
from fedagentgym.base.rounding import format_fixed, subtract_shown
from fedagentgym.base.streams import derive, stream
from fedagentgym.experiment.config import RunConfig
from fedagentgym.experiment.opened import Run, open_data, resolve_agent
from fedagentgym.learning.advantages import compute_training_rewards, is_constant, objective_values
from fedagentgym.learning.trajectory import Group, PerTurn

if TYPE_CHECKING:
    from fedagentgym.algorithms.runtime import Runtime
    from fedagentgym.envs.core import TextEnv

MAX_CONSTANT, MIN_ROOM, MIN_FORM = 0.2, 0.3, 0.9
ATTEMPTS = 8
"""Least episodes of a task in `play_first_batch`, and least tasks in `check_first_batch`."""


@dataclass(frozen=True)
class Gate:
    """A number at the start of a run and its limit; `advice` is what a failure means."""

    name: str
    value: float
    limit: float
    at_most: bool
    advice: str

    @property
    def passed(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def describe(self) -> str:
        """The gate in one line, and below it what a failure means."""
        bound = f"{'at most' if self.at_most else 'at least'} {format_fixed(self.limit, 2)}"
        verdict = "passed" if self.passed else f"missed\n  {self.advice}"
        return f"{self.name:38s}{format_fixed(self.value, 2):>6s}  {bound:14s}  {verdict}"

    def to_plain(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


@dataclass(frozen=True)
class FirstBatch:
    """The episodes of a batch, in groups, played by a run's initial agent, and the settings by which the run learns from them."""

    groups: tuple[Group, ...]
    prompt: str
    """The text before the first reply, as the model got it."""
    weights: Mapping[str, float]
    format_penalty: float
    objectives: frozenset[str] = frozenset()
    """Objectives that the method gives its clients besides those of the configuration."""
    own_rewards: bool = True
    """True if clients learn from what their own tasks pay, not from the scores of others or from tasks yet to be made."""
    by_values: bool = False
    """True if episodes are compared with a value head's expectation, not within their groups."""
    alone: bool = False
    """True if the run compares the episodes of a group, and its groups have only one."""

    @cached_property
    def rewards(self) -> list[PerTurn]:
        """The learned reward of each turn, by group and episode."""
        return [compute_training_rewards(group, self.weights, self.format_penalty) for group in self.groups]

    @property
    def spread(self) -> float:
        """The mean over groups of the variance of their episodes' rewards."""
        return float(np.mean([np.var([float(part.sum()) for part in earned]) for earned in self.rewards]))

    @property
    def parsed(self) -> float:
        """The share of turns whose reply had the required form and gave a valid action."""
        turns = [turn for group in self.groups for episode in group for turn in episode.turns]
        return float(np.mean([turn.valid and turn.format for turn in turns])) if turns else 0.0

    @property
    def fault(self) -> str | None:
        """The reason why the run can learn nothing at all, with the keys to change; None if it can learn something."""
        tried = f"{len(self.groups)} groups of {len(self.groups[0])} episodes"
        if self.alone:
            return (
                "groups of one episode have nothing to compare it with, so there is nothing to learn from: learning.group_size"
                " must be at least 2 with this learning.advantage (gae compares an episode with the expectation of a value head)"
            )
        if not self.parsed:
            return (
                f"the first batch has no reply that could be read ({tried}): does the prompt ask for the form that is graded"
                " (agent.system, agent.request, agent.template), and is there room for it (agent.decoding.max_new_tokens)?"
            )
        earned = list(self.rewards)  # by every objective that one of the clients may have
        for group in self.groups:
            for name in self.objectives:
                with contextlib.suppress(UnknownNameError):  # this task does not pay it
                    earned.append(objective_values(group, name))
        if self.by_values:
            if self.own_rewards and is_constant(tuple(part for rewards in earned for part in rewards)):
                return (
                    f"in the first batch all episodes earned the same ({tried}), so there is nothing to learn from: choose other"
                    " tasks (env.options), a higher agent.decoding.temperature, or other learning.objectives"
                )
        elif self.own_rewards and len(self.groups[0]) > 1 and all(map(is_constant, earned)):
            return (
                f"the first batch has no group in which two episodes earned different rewards ({tried}), so there is nothing to"
                " learn from: choose tasks of middle difficulty (env.options), a higher agent.decoding.temperature, a larger"
                " learning.group_size, or other learning.objectives"
            )
        return None

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The numbers at the start of the run that say how much it can learn, each with its limit."""
        size = max(map(len, self.groups))
        constant = float(np.mean([is_constant(earned) for earned in self.rewards]))
        once = float(np.mean([episode.success for group in self.groups for episode in group]))
        ever = float(np.mean([any(episode.success for episode in group) for group in self.groups]))
        groups = Gate(
            "groups whose episodes earn the same",
            constant,
            MAX_CONSTANT,
            True,
            "these teach nothing; choose tasks of middle difficulty, a higher temperature or larger groups",
        )
        return (
            *(() if self.by_values else (groups,)),
            Gate(
                f"pass@{size} - pass@1 ({format_fixed(ever, 2)} - {format_fixed(once, 2)})",
                subtract_shown(ever, once, 2),
                MIN_ROOM,
                False,
                "the agent does nearly the same in every attempt, so practice has little to choose from; "
                + ("it can do these tasks" if once > 0.5 else "it cannot do these tasks: let it imitate more"),
            ),
            Gate(
                "replies that can be read",
                self.parsed,
                MIN_FORM,
                False,
                "imitate more, ask for shorter replies, or raise decoding.max_new_tokens",
            ),
        )


def play_first_batch(config: RunConfig, tasks: int = 32) -> FirstBatch:
    """Play groups of episodes on tasks of the clients, with the agent from which the run starts.

    A warm start is made first, unless it is in the cache.
    """
    from fedagentgym.algorithms.runtime import Runtime

    client_split, _ = open_data(config)
    agent, _ = resolve_agent(config)
    runtime = Runtime(config.spec(agent), client_split=client_split)
    return play_batch(config, runtime, tasks, max(config.learning.group_size, ATTEMPTS))


def play_batch(config: RunConfig, runtime: Runtime, tasks: int, size: int) -> FirstBatch:
    """Play a first batch with an open runtime, in groups of `size` episodes."""
    from fedagentgym.learning.rollouts import collect

    groups = tuple(
        group
        for env, chosen in open_environments(config, runtime, tasks)
        for group in collect(
            runtime.agent,
            env,
            chosen,
            group_size=size,
            seed=derive(config.seed, "gates"),
            parallel=config.learning.parallel_episodes,
        ).groups
    )
    if not groups:
        raise DataError("no client has a task to play a first batch on")
    first = groups[0][0]
    tokenizer = getattr(getattr(runtime.agent, "policy", None), "tokenizer", None)
    ids = first.segments[0].prompt_ids.tolist() if first.segments else []
    prompt = (
        tokenizer.decode(ids) if tokenizer is not None and ids else first.turns[0].observation if first.turns else ""
    )
    weights = {part.name: part.weight for part in config.learning.objectives}
    given = frozenset(name for names in getattr(config.method, "objectives", ()) for name in names)
    own = config.describe().trains_local_models
    advantage, penalised = config.learning.advantage, config.learning.format_penalty_on == "turn"
    alone = own and config.learning.group_size == 1 and advantage.needs_groups and not penalised
    return FirstBatch(groups, prompt, weights, config.learning.format_penalty, given, own, advantage.uses_values, alone)


def check_first_batch(run: Run) -> None:
    """Refuse a run whose first batch has nothing to learn from, before anything is written.

    The check is only whether anything at all can be learned. It plays as many tasks as a client's step has, at least 8. A method
    that plays no episodes to learn from is not checked, nor is a run whose tasks or programs are on other machines, or whose
    update is divided over processes.
    """
    work, config = run.algorithm.card.round, run.config
    learns = work is None or (work.episodes > 0 and work.optimizer_steps > 0)
    elsewhere = run.spec.partition.is_held or (config.agent.harness is not None and not config.agent.harness.command)
    if not learns or not config.federation.rounds or elsewhere or devices.here().size > 1:
        return
    batch = play_batch(config, run.runtime, max(config.learning.tasks_per_step, ATTEMPTS), config.learning.group_size)
    if batch.fault is not None:
        raise OptionError(f"{batch.fault} (--force, or force=True, runs it anyway)")


def open_environments(config: RunConfig, runtime: Runtime, tasks: int) -> Iterator[tuple[TextEnv, list[str]]]:
    """Environments with some of the clients' tasks: the unchanged one, or, where clients have variants, each client's own."""
    draw, client_split = stream(config.seed, "gates"), runtime.client_split
    if all(client.variant is None for client in client_split):
        held = sorted({task for client in client_split for task in client.tasks})
        chosen = [held[int(place)] for place in draw.permutation(len(held))[:tasks]]
        yield runtime.open_env(split=config.env.split), chosen
        return
    pairs = [(client.index, task) for client in client_split for task in client.tasks]
    drawn = sorted(pairs[int(place)] for place in draw.permutation(len(pairs))[:tasks])
    for index, own in groupby(drawn, key=itemgetter(0)):
        yield client_split.client(index).open_env(), [task for _, task in own]
