"""Grading somebody else's episode by replaying its actions, as a server does with answers from clients.

The tokens are kept; rewards, scores and the end of the episode are those of the environment that replays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedagentgym.base.errors import DataError
from fedagentgym.learning.trajectory import Group, Trajectory, Turn

if TYPE_CHECKING:
    from fedagentgym.envs.core import Episode, TextEnv


def check_tokens(groups: Sequence[Group], vocabulary: int, context: int) -> None:
    """Refuse episodes with tokens outside of this vocabulary and context: learning from them would fail or use invalid
    numbers."""
    for trajectory in (trajectory for group in groups for trajectory in group):
        if any(turn.tokens < 0 for turn in trajectory.turns):
            raise DataError(f"an answer to {trajectory.task} has a turn with a negative number of tokens")
        for segment in trajectory.segments:
            ids = np.concatenate([segment.prompt_ids, segment.token_ids, segment.allowed_ids])
            if len(ids) and not (ids.min() >= 0 and ids.max() < vocabulary):
                raise DataError(f"an answer to {trajectory.task} holds a token outside the vocabulary of {vocabulary}")
            if len(segment.prompt_ids) + len(segment.token_ids) > context:
                raise DataError(
                    f"an answer to {trajectory.task} is longer than the model's context of {context} tokens"
                )
            if not len(segment.prompt_ids) and segment.mask[:1].any():
                raise DataError(f"an answer to {trajectory.task} begins without a prompt")
            said = segment.logprobs[segment.mask]
            if not (np.isfinite(said) & (said <= 1e-3)).all():
                raise DataError(f"an answer to {trajectory.task} has an invalid log-prob")


def regrade(env: TextEnv, groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups with the grades of their episodes replaced by those of `env`, whose pool must contain their tasks."""
    return tuple(tuple(regrade_trajectory(env, trajectory) for trajectory in group) for group in groups)


def regrade_trajectory(env: TextEnv, trajectory: Trajectory) -> Trajectory:
    """One episode, replayed; actions after the end of the replay are not played and earn nothing."""
    (episode,) = env.reset_many([trajectory.task], [trajectory.seed])
    turns = []
    for turn in trajectory.turns:
        if episode.over:
            turns.append(turn._replace(reward=0.0, rewards={}, score=episode.view.score))
            continue
        (episode,) = env.step_many([episode], [turn.action])
        turns.append(_regrade_turn(env, turn, episode))
    return replace(
        trajectory,
        turns=tuple(turns),
        category=episode.task.category,
        score=float(episode.view.score),
        success=bool(episode.view.success),
        terminated=episode.terminated,
        truncated=not episode.terminated,
    )


def _regrade_turn(env: TextEnv, turn: Turn, episode: Episode) -> Turn:
    view = episode.view
    rewards = {name: float(view.rewards.get(name, 0.0)) for name in env.reward_names}
    return turn._replace(reward=float(episode.reward), rewards=rewards, score=float(view.score), valid=bool(view.valid))
