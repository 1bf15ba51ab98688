"""Gates before learning: what the agent of a run does at the start decides whether reinforcement can teach it anything.

Groups whose episodes all earn the same have no gradient; what never succeeds in a group of attempts is not found by practice; and
replies that the environment cannot read earn nothing whatever they mean. A run that misses a gate would take its time and stay
where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from fedagentgym.base.rounding import format_fixed, subtract_shown
from fedagentgym.base.streams import derive, stream
from fedagentgym.experiment.config import RunConfig
from fedagentgym.experiment.opened import open_data, resolve_agent
from fedagentgym.learning.advantages import compute_training_rewards, is_constant
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.algorithms.runtime import Runtime
    from fedagentgym.envs.core import TextEnv

MOST_CONSTANT, LEAST_ROOM, LEAST_FORM = 0.2, 0.3, 0.9
ATTEMPTS = 8
"""Episodes of a task, unless the run's groups have more."""


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


def measure_gates(config: RunConfig, tasks: int = 32) -> tuple[Gate, ...]:
    """Play groups of episodes on tasks of the clients, with the agent from which the run starts, and compare them with the gates.

    A warm start is made first, unless it is there.
    """
    from fedagentgym.agents.model.loading import use_threads
    from fedagentgym.algorithms.runtime import Runtime
    from fedagentgym.learning.rollouts import collect

    client_split, _ = open_data(config)
    agent, _ = resolve_agent(config)
    runtime = Runtime(config.spec(agent), client_split=client_split)
    size = max(config.learning.group_size, ATTEMPTS)
    with use_threads(config.agent.threads):
        groups = [
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
        ]
    weights = {part.name: part.weight for part in config.learning.objectives}
    return evaluate_gates(groups, weights, config.learning.format_penalty)


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


def evaluate_gates(groups: Sequence[Group], weights: Mapping[str, float], format_penalty: float) -> tuple[Gate, ...]:
    """The gates of groups of episodes under these objectives."""
    size = max(map(len, groups))
    rewards = [compute_training_rewards(group, weights, format_penalty) for group in groups]
    constant = float(np.mean([is_constant(earned) for earned in rewards]))
    once = float(np.mean([episode.success for group in groups for episode in group]))
    ever = float(np.mean([any(episode.success for episode in group) for group in groups]))
    turns = [turn for group in groups for episode in group for turn in episode.turns]
    form = float(np.mean([turn.valid and turn.format for turn in turns])) if turns else 0.0
    return (
        Gate(
            "groups whose episodes earn the same",
            constant,
            MOST_CONSTANT,
            True,
            "these teach nothing; choose tasks of middle difficulty, a higher temperature or larger groups",
        ),
        Gate(
            f"pass@{size} - pass@1 ({format_fixed(ever, 2)} - {format_fixed(once, 2)})",
            subtract_shown(ever, once, 2),
            LEAST_ROOM,
            False,
            "the agent does nearly always what it does once, so practice has little to choose from; "
            + ("it can do these tasks" if once > 0.5 else "it cannot do these tasks: let it imitate more"),
        ),
        Gate(
            "replies that can be read",
            form,
            LEAST_FORM,
            False,
            "imitate more, ask for shorter replies, or raise decoding.max_new_tokens",
        ),
    )
