"""Rewards of an episode: named components of the environment, and objectives that need the whole group.

The learned reward is a weighted sum of names. A name is looked up in this order:

1. `reward`: what the environment's step paid; `score`: the environment's final score;
2. a component of the environment's `info["rewards"]`;
3. a group objective, registered in `OBJECTIVES`: `length` (shorter than its siblings), `repetition` (penalty for repeated
   phrases), `format` (where the environment pays none of that name), or one's own.

Every value is kept per turn, so that step-level methods can use it; an episode's value is the sum over its turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError, unknown_name_error
from fedagentgym.base.registry import Registry
from fedagentgym.learning.trajectory import Group, Trajectory

Values = NDArray[np.float64]
PerTurn = tuple[Values, ...]
"""One array per trajectory of a group, with one number per turn."""


def length(group: Group) -> list[float]:
    """0.5 for the shortest to -0.5 for the longest episode of the group; a failed one never gains by being short."""
    sizes = [trajectory.tokens for trajectory in group]
    shortest, longest = min(sizes), max(sizes)
    if shortest == longest:
        return [0.0] * len(group)
    scaled = [0.5 - (size - shortest) / (longest - shortest) for size in sizes]
    return [value if trajectory.success else min(0.0, value) for value, trajectory in zip(scaled, group, strict=True)]


def repetition(group: Group, size: int = 3) -> list[float]:
    """0 when no phrase of `size` words occurs twice, down to nearly -1 when all are the same."""
    return [_repeated_share(trajectory, size) for trajectory in group]


def _repeated_share(trajectory: Trajectory, size: int) -> float:
    phrases: list[tuple[str, ...]] = []
    for turn in trajectory.turns:
        words = turn.reply.lower().split()
        phrases += [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return len(set(phrases)) / len(phrases) - 1.0 if phrases else 0.0


def kept_format(group: Group) -> list[float]:
    """1 for an episode whose every reply has the required format, according to the agent's parser."""
    return [float(all(turn.format for turn in trajectory.turns)) for trajectory in group]


Objective = Callable[[Group], Sequence[float]]
"""A group objective: one number per episode of the group."""
OBJECTIVES = Registry("objective")
"""Name -> `Objective`."""
OBJECTIVES.register("length", length)
OBJECTIVES.register("repetition", repetition)
OBJECTIVES.register("format", kept_format)


def objective_values(group: Group, name: str) -> PerTurn:
    """The named objective, per trajectory and turn; a group objective is paid at the last turn."""
    if name == "reward":
        return tuple(np.array([turn.reward for turn in trajectory.turns], dtype=np.float64) for trajectory in group)
    if name == "score":
        return _assign_to_last_turn(group, [trajectory.score for trajectory in group])
    components = {component for trajectory in group for turn in trajectory.turns for component in turn.rewards}
    if name in components:
        return tuple(
            np.array([turn.rewards.get(name, 0.0) for turn in trajectory.turns], dtype=np.float64)
            for trajectory in group
        )
    if name in OBJECTIVES:
        return _assign_to_last_turn(group, group_objective(group, name))
    raise unknown_name_error("objective", name, list_objectives(components))


def group_objective(group: Group, name: str) -> list[float]:
    """The validated values of a registered objective."""
    objective: Objective = OBJECTIVES.get(name)
    found = [float(value) for value in objective(group)]
    if len(found) != len(group):
        raise OptionError(f"objective {name!r} gives {len(found)} values to a group of {len(group)} episodes")
    if not np.isfinite(found).all():
        raise OptionError(f"objective {name!r} gives task {group[0].task} a value that is not a finite number")
    return found


def list_objectives(components: Sequence[str] | set[str]) -> list[str]:
    """Every valid name of an objective, given the environment's components."""
    return list(dict.fromkeys(["reward", "score", *sorted(components), *OBJECTIVES]))


def compute_training_rewards(group: Group, weights: Mapping[str, float], format_penalty: float) -> PerTurn:
    """The scalar reward for learning: weighted objectives minus the penalty at each turn with a malformed reply."""
    total = tuple(-part for part in compute_format_penalties(group, format_penalty))
    for name, weight in weights.items():
        total = tuple(so_far + weight * part for so_far, part in zip(total, objective_values(group, name), strict=True))
    return total


def compute_format_penalties(group: Group, format_penalty: float) -> PerTurn:
    """The penalty of each turn for a malformed reply."""
    return tuple(
        format_penalty * np.array([not turn.format for turn in trajectory.turns], dtype=np.float64)
        for trajectory in group
    )


def _assign_to_last_turn(group: Group, finals: Sequence[float]) -> PerTurn:
    result = []
    for trajectory, final in zip(group, finals, strict=True):
        array = np.zeros(len(trajectory.turns), dtype=np.float64)
        array[-1:] = final
        result.append(array)
    return tuple(result)
