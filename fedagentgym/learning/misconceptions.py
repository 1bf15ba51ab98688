"""Misconceptions: demonstrations that, in some categories, follow another procedure more often than the right one.

An agent that imitates them can carry out both procedures and has, for each category, a prior for one of them. If the prior is
right, training strengthens it; if it is wrong, training on this category can correct it, and training on others cannot. This is
why clients need each other (docs/explanation/wrong-beliefs.md).

The affected categories are drawn from the settings' own seed, evenly over their right procedures, so that no procedure is
favoured overall. Whether a demonstration is wrong depends on its task alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedagentgym.base.streams import stream
from fedagentgym.envs.make import EnvLike, open_env
from fedagentgym.envs.misconceptions import MisleadableEnv, check_misleadable
from fedagentgym.learning.settings import MisconceptionSettings
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.envs.misconceptions import Procedures
    from fedagentgym.envs.protocols import Expert
    from fedagentgym.envs.tasks import Task


@dataclass(frozen=True)
class Misconception:
    """The demonstrations of a category: its own procedure in a share `right` of the tasks, the other one in the rest."""

    own: str
    other: str
    right: float
    misled: bool

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Belief:
    """The shares of a category's episodes that followed its `own` procedure and any `other` one; `episodes` is their number."""

    own: float
    other: float
    episodes: int

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)


def draw_misconceptions(env: EnvLike, settings: MisconceptionSettings) -> dict[str, Misconception]:
    """Choose which categories of an environment get a misconception, evenly over their right procedures.

    Args:
        env: The environment, a `MisleadableEnv`.
        settings: The share of categories, the shares of right demonstrations, and the seed.

    Returns:
        Category -> its demonstrations: they follow its `own` procedure in a share `right` of the tasks and the `other` one in
        the rest; `misled` says whether the category has a misconception.

    Raises:
        OptionError: If the environment has no procedures that could be mistaken for each other.
    """
    procedures = check_misleadable(open_env(env)).list_procedures()
    misled = set(choose_misled(procedures, settings))
    return {
        category: Misconception(
            known.own,
            stream(settings.seed, "misconceptions", "other", category).pick(known.others),
            settings.right if category in misled else settings.otherwise,
            category in misled,
        )
        for category, known in sorted(procedures.items())
    }


def choose_misled(procedures: Mapping[str, Procedures], settings: MisconceptionSettings) -> list[str]:
    """Choose the categories with a misconception: about the same share of the categories of each right procedure."""
    order = stream(settings.seed, "misconceptions", "categories").shuffled(sorted(procedures))
    groups: dict[str, list[str]] = {}
    for category in order:
        groups.setdefault(procedures[category].own, []).append(category)

    def rank(category: str) -> float:
        members = groups[procedures[category].own]
        return (members.index(category) + 0.5) / len(members)

    return sorted(order, key=rank)[: int(settings.share * len(order) + 0.5)]


@dataclass(frozen=True)
class MisledExperts:
    """Chooses for every task the expert that demonstrates it."""

    env: MisleadableEnv
    misconceptions: Mapping[str, Misconception]
    seed: int = 0

    def __call__(self, task: Task) -> Expert:
        shown = self.misconceptions.get(task.category)
        if shown is None or self.shows_right(task, shown):
            return self.env.expert()
        return self.env.misled_expert(shown.other)

    def shows_right(self, task: Task, shown: Misconception) -> bool:
        """Return whether this task is demonstrated by its category's own procedure; depends on the task and the seed alone."""
        return stream(self.seed, "misconceptions", "task", task.id).uniform() < shown.right


def make_misled_experts(env: EnvLike, settings: MisconceptionSettings) -> MisledExperts:
    """Make the function that chooses the experts of a warm start, whose demonstrations then contain misconceptions.

    Args:
        env: The environment, a `MisleadableEnv`.
        settings: The share of categories, the shares of right demonstrations, and the seed.

    Returns:
        A function from a task to the expert that demonstrates it; for given settings, the choice depends on the task alone.

    Raises:
        OptionError: If the environment has no procedures that could be mistaken for each other.
    """
    env = open_env(env)
    return MisledExperts(check_misleadable(env), draw_misconceptions(env, settings), settings.seed)


def measure_beliefs(env: EnvLike, groups: Iterable[Group]) -> dict[str, Belief]:
    """Count which procedures episodes followed.

    Args:
        env: The environment.
        groups: The episodes, in groups as `collect` and `evaluate` return them.

    Returns:
        Category -> the shares of its episodes that followed its `own` procedure and an `other` one, and how many `episodes`
        there were; empty for environments without other procedures.
    """
    env = open_env(env)
    if not isinstance(env, MisleadableEnv):
        return {}
    procedures = env.list_procedures()
    found: dict[str, list[tuple[bool, bool]]] = {}
    for trajectory in (trajectory for group in groups for trajectory in group):
        known = procedures.get(trajectory.category)
        if known is None:
            continue
        task = env.pool[trajectory.task]
        own = env.follows(task, trajectory.actions, known.own)
        other = not own and any(env.follows(task, trajectory.actions, one) for one in known.others)
        found.setdefault(trajectory.category, []).append((own, other))
    beliefs = {}
    for category, rows in sorted(found.items()):
        own_share, other_share = np.mean(rows, axis=0).tolist()
        beliefs[category] = Belief(own_share, other_share, len(rows))
    return beliefs


def describe_misconceptions(
    env: TextEnv, settings: MisconceptionSettings | None, played: TextEnv, groups: Sequence[Group]
) -> dict[str, Any]:
    """The entries of a warm start's note: the demonstrations of each category, and the procedures that the agent follows
    afterwards. Empty without misconceptions."""
    if settings is None:
        return {}
    return {
        "misconceptions": {name: shown.to_plain() for name, shown in draw_misconceptions(env, settings).items()},
        "beliefs": {name: belief.to_plain() for name, belief in measure_beliefs(played, groups).items()},
    }
