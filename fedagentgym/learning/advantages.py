"""Rewards of a group to advantages: grpo, dr_grpo, gigpo. Plain numpy, float64, one group at a time.

    grpo      A_i = (R_i - mean) / (std + 1e-6)
    dr_grpo   A_i = R_i - mean
    gigpo     A_it = A_i + omega * (q_it - mean_c) / (std_c + 1e-6)

where R_i is the return of episode i, q_it the discounted return from turn t on, and c the turns of the group that start from
an identical observation. A group whose rewards are all equal gets exactly zero.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedagentgym.learning.objectives import PerTurn, Values
from fedagentgym.learning.settings import AdvantageSettings
from fedagentgym.learning.trajectory import Group

EPSILON = 1e-6
Deviation = Literal["population", "sample", "none"]


def standardised(
    rewards: Values, deviation: Deviation = "population", repeats: NDArray[np.int64] | None = None
) -> Values:
    """Rewards less their mean, over their deviation; zero for a constant, single or non-finite group.

    `repeats` counts each reward several times in mean and deviation.

    >>> standardised(np.array([1.0, 0.0, 0.0, 1.0])).round(3).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """
    if len(rewards) == 0 or not np.isfinite(rewards).all() or rewards.max() == rewards.min():
        return np.zeros(len(rewards), dtype=np.float64)
    sample = rewards if repeats is None else np.repeat(rewards, repeats)
    if len(sample) == 0 or sample.max() == sample.min():
        return np.zeros(len(rewards), dtype=np.float64)
    scale = 1.0 if deviation == "none" else float(sample.std(ddof=1 if deviation == "sample" else 0)) + EPSILON
    return np.asarray((rewards - sample.mean()) / scale, dtype=np.float64)


def returns(rewards: Values, gamma: float) -> Values:
    """Discounted sum of the rewards from each turn on."""
    result = np.zeros_like(rewards)
    ahead = 0.0
    for turn in range(len(rewards) - 1, -1, -1):
        ahead = rewards[turn] + gamma * ahead
        result[turn] = ahead
    return result


def group_advantages(group: Group, rewards: PerTurn, settings: AdvantageSettings) -> PerTurn:
    """The advantage of every turn of every trajectory of one group."""
    turns = np.array([len(trajectory.turns) for trajectory in group], dtype=np.int64)
    totals = np.array([part.sum() for part in rewards], dtype=np.float64)
    deviation: Deviation = "none" if settings.name == "dr_grpo" else settings.std
    episode = standardised(totals, deviation, turns if settings.baseline == "turns" else None)
    spread = tuple(np.full(count, advantage) for count, advantage in zip(turns, episode, strict=True))
    if settings.name != "gigpo":
        return spread
    steps = step_advantages(
        [[turn.observation for turn in trajectory.turns] for trajectory in group],
        tuple(returns(part, settings.gamma) for part in rewards),
        deviation,
    )
    return tuple(whole + settings.omega * step for whole, step in zip(spread, steps, strict=True))


def step_advantages(anchors: Sequence[Sequence[Hashable]], step_returns: PerTurn, deviation: Deviation) -> PerTurn:
    """Standardise the returns of all turns that start from the same anchor; an anchor seen once gives zero."""
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for row, keys in enumerate(anchors):
        for turn, key in enumerate(keys):
            places.setdefault(key, []).append((row, turn))
    result = tuple(np.zeros(len(part), dtype=np.float64) for part in step_returns)
    for members in places.values():
        scaled = standardised(np.array([step_returns[row][turn] for row, turn in members]), deviation)
        for (row, turn), value in zip(members, scaled, strict=True):
            result[row][turn] = value
    return result


def is_constant(rewards: PerTurn) -> bool:
    """Whether the episodes of a group cannot be told apart by their reward."""
    totals = [float(part.sum()) for part in rewards]
    return max(totals) == min(totals) if totals else True
