"""Generalised advantage estimation with a value head: the advantages and targets of single tokens. Numpy, float64.

A *choice* is a token that the agent chose among several. The choices of an episode are one chain, in the order in which they
were made. Tokens between two choices (observations, prompts, tokens that were the only one allowed) belong to the environment
and are skipped. V_i is the value of the state before choice i, and r_i the reward after it and before the next choice:

    delta_i  = r_i + gamma * V_(i+1) - V_i                     V = 0 after the last choice
    A_i      = delta_i + gamma * lam * A_(i+1)
    target_i = A_i + V_i

The reward of a turn counts at its last choice. If the turn has no choice, it counts at the choice before; if there is none, it
is dropped. The value after the end of an episode is 0, whether it was solved, lost or cut off. With `span: turn` the choices of
each turn are a chain of their own, and the return of the whole episode counts at its last choice. With `whiten` the advantages
of all choices of the step are then whitened; the targets are not. An episode whose rewards are not all finite numbers teaches
nothing, as with the other estimators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedagentgym.learning.advantages import GAE, compute_turn_values
from fedagentgym.learning.forward import mark_choices
from fedagentgym.learning.trajectory import Group, PerTurn, Row, Trajectory, map_tokens_to_turns

Floats = NDArray[np.float64]
WHITE = 1e-8


def compute_gae(rewards: Floats, values: Floats, gamma: float, lam: float) -> Floats:
    """The advantages of one chain of choices.

    >>> compute_gae(np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.5, 0.5]), gamma=1.0, lam=0.5).tolist()
    [0.125, 0.25, 0.5]
    """
    ahead = np.append(values[1:], 0.0) if len(values) else values
    advantages = rewards + gamma * ahead - values
    for place in range(len(advantages) - 2, -1, -1):
        advantages[place] += gamma * lam * advantages[place + 1]
    return advantages


def add_advantages(
    rows: Sequence[Row],
    groups: Sequence[Group],
    values: Sequence[Floats],
    returns: Sequence[tuple[PerTurn, PerTurn | None]],
    estimator: GAE,
) -> list[Row]:
    """Return the rows of groups with advantages, values and targets.

    Args:
        rows: The rows of all groups, in order.
        groups: The groups.
        values: For each row the value before each of its own tokens.
        returns: For each group the rewards of its turns, and the penalties of single turns, if kept separate.
        estimator: The settings.
    """
    chosen = [mark_choices(row) for row in rows]
    filled = [(np.zeros(len(row.own)), np.zeros(len(row.own))) for row in rows]
    first = 0
    for group, (rewards, penalties) in zip(groups, returns, strict=True):
        charged = tuple(np.zeros_like(part) for part in rewards) if penalties is None else penalties
        per_turn = compute_turn_values(rewards, charged) if estimator.span == "turn" else rewards
        for trajectory, paid in zip(group, per_turn, strict=True):
            if not np.isfinite(paid).all():
                for row in range(first, first + len(trajectory.segments)):
                    filled[row][1][:], chosen[row] = values[row], np.zeros_like(chosen[row])
                first += len(trajectory.segments)
                continue
            for chain, earned in _iter_chains(trajectory, chosen[first:], paid, estimator):
                at = [values[first + row][place] for row, place in chain]
                advantages = compute_gae(earned, np.array(at, dtype=np.float64), estimator.gamma, estimator.lam)
                for (row, place), advantage, value in zip(chain, advantages, at, strict=True):
                    filled[first + row][0][place], filled[first + row][1][place] = advantage, advantage + value
            first += len(trajectory.segments)
    if estimator.whiten:
        _whiten([advantages for advantages, _ in filled], chosen)
    return [
        replace(row, advantages=advantages, values=value, returns=targets)
        for row, value, (advantages, targets) in zip(rows, values, filled, strict=True)
    ]


def _iter_chains(
    trajectory: Trajectory, chosen: Sequence[NDArray[np.bool_]], paid: Floats, estimator: GAE
) -> Iterator[tuple[list[tuple[int, int]], Floats]]:
    """Each chain of an episode: its choices as (row, place), and the reward after each."""
    places = [
        (int(turn), row, place)
        for row, owners in enumerate(map_tokens_to_turns(trajectory))
        for place, turn in enumerate(owners)
        if chosen[row][place]
    ]
    places.sort(key=lambda one: one[0])  # a stable sort: the choices of a turn stay in order
    turns = np.array([turn for turn, _, _ in places], dtype=np.int64)
    earned = np.zeros(len(places))
    for turn, reward in enumerate(paid):
        last = int(np.searchsorted(turns, turn, side="right")) - 1
        if last >= 0 and (estimator.span == "episode" or turns[last] == turn):
            earned[last] += reward
    chain = [(row, place) for _, row, place in places]
    starts = np.flatnonzero(np.diff(turns)) + 1 if estimator.span == "turn" else ()
    for part in np.split(np.arange(len(chain)), starts):
        yield [chain[place] for place in part], earned[part]


def _whiten(advantages: Sequence[Floats], chosen: Sequence[NDArray[np.bool_]]) -> None:
    """Give the advantages of all choices mean 0 and deviation 1, in place; equal ones become 0."""
    every = np.concatenate([part[where] for part, where in zip(advantages, chosen, strict=True)] or [np.zeros(0)])
    if len(every):
        scale = np.sqrt(every.var(ddof=1) + WHITE) if len(every) > 1 else 1.0
        for part, where in zip(advantages, chosen, strict=True):
            part[where] = (part[where] - every.mean()) / scale


def explain(rows: Sequence[Row]) -> float | None:
    """The share of the targets' variance that the values explain; None if the targets do not vary."""
    targets, values = (
        np.concatenate([np.zeros(0), *(getattr(row, name)[mark_choices(row)] for row in rows)])
        for name in ("returns", "values")
    )
    spread = float(targets.var()) if len(targets) else 0.0
    return 1.0 - float((targets - values).var()) / spread if spread > 0 else None
