"""Somebody else's episode, judged by playing its actions again: what a server does with answers that clients send.

The tokens are taken as they are; rewards, scores and the end of the episode are those of the world in which it is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedagentgym.learning.trajectory import Group, Trajectory, Turn

if TYPE_CHECKING:
    from fedagentgym.envs.core import Episode, TextEnv


def regrade(env: TextEnv, groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups with every judgement of their episodes replaced by that of `env`, whose pool must hold their tasks."""
    return tuple(tuple(regraded(env, trajectory) for trajectory in group) for group in groups)


def regraded(env: TextEnv, trajectory: Trajectory) -> Trajectory:
    """One episode, replayed; actions after the end of the replay are not played and earn nothing."""
    (episode,) = env.reset_many([trajectory.task], [trajectory.seed])
    turns = []
    for turn in trajectory.turns:
        if episode.over:
            turns.append(turn._replace(reward=0.0, rewards={}, score=episode.view.score))
            continue
        (episode,) = env.step_many([episode], [turn.action])
        turns.append(_judged(env, turn, episode))
    return replace(
        trajectory,
        turns=tuple(turns),
        category=episode.task.category,
        score=float(episode.view.score),
        success=bool(episode.view.success),
        terminated=episode.terminated,
        truncated=not episode.terminated,
    )


def _judged(env: TextEnv, turn: Turn, episode: Episode) -> Turn:
    view = episode.view
    rewards = {name: float(view.rewards.get(name, 0.0)) for name in env.reward_names}
    return turn._replace(reward=float(episode.reward), rewards=rewards, score=float(view.score), valid=bool(view.valid))
