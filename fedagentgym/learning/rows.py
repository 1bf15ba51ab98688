"""Rows of the loss from trajectories, and which rows go into which optimizer step.

A row is a segment, with an advantage for each of the agent's own tokens. `minibatches: 4` cuts a pass over the rows into four
steps, however many rows there are. `minibatch_rows: 64` makes steps of 64 rows, however many steps that takes: where every turn
is a row, longer episodes then mean more steps, as in the published agent code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.learning.objectives import PerTurn
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.trajectory import Group, Segment, Trajectory, map_tokens_to_turns


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence of token ids; `own` are the positions of the agent's tokens in it, the other arrays run along them."""

    ids: NDArray[np.int64]
    own: NDArray[np.int64]
    behaviour: NDArray[np.float32]
    advantages: NDArray[np.float64]
    allowed_ids: NDArray[np.int32]
    allowed_counts: NDArray[np.int32]

    @property
    def active(self) -> bool:
        """Whether the policy gradient of this row can differ from zero."""
        return bool(np.any(self.advantages))


def build_rows(groups: Sequence[Group], advantages: Sequence[PerTurn]) -> list[Row]:
    """The rows of all groups, in order."""
    return [
        row
        for group, per_turn in zip(groups, advantages, strict=True)
        for trajectory, turns in zip(group, per_turn, strict=True)
        for row in build_trajectory_rows(trajectory, turns)
    ]


def build_trajectory_rows(trajectory: Trajectory, advantages: NDArray[np.float64]) -> Iterator[Row]:
    """One row per segment; each token has the advantage of its turn."""
    for segment, owner in zip(trajectory.segments, map_tokens_to_turns(trajectory), strict=True):
        yield build_row(segment, advantages[owner], trajectory.task)


def build_row(segment: Segment, advantages: NDArray[np.float64], task: str = "") -> Row:
    """The row of one segment."""
    places = np.flatnonzero(segment.mask)
    own = len(segment.prompt_ids) + places
    if len(own) and own[0] == 0:
        raise DataError(f"a segment of task {task!r} begins with a token of the agent: nothing precedes it")
    logprobs = segment.logprobs[places]
    if not np.isfinite(logprobs).all():
        raise DataError(f"a segment of task {task!r} holds a log-prob that is not finite")
    ids = np.concatenate([segment.prompt_ids, segment.token_ids]).astype(np.int64)
    return Row(ids, own, logprobs, advantages, segment.allowed_ids, segment.allowed_counts)


def batch_by_length(lengths: Sequence[int], micro_tokens: int) -> list[list[int]]:
    """Indices of sequences of similar length, such that a padded batch holds at most `micro_tokens` (a single one may hold more).

    >>> batch_by_length([5, 2, 3, 9], 8)
    [[1, 2], [0], [3]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if not batches or (len(batches[-1]) + 1) * lengths[index] > micro_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def split_minibatches(count: int, settings: LearningSettings, rng: np.random.Generator) -> list[list[int]]:
    """Numbers of the rows of each mini-batch of one pass over `count` rows; a single mini-batch keeps their order."""
    if not count:
        return []
    size = settings.minibatch_rows
    if size is None:
        parts = min(settings.minibatches, count)
    elif settings.minibatch_fill:
        filled = fill_last_minibatch(count, size, rng)
        return [filled[start : start + size] for start in range(0, len(filled), size)]
    else:
        parts = -(-count // size)
    if parts == 1:
        return [list(range(count))]
    order = rng.permutation(count)
    if size is None:
        return [part.tolist() for part in np.array_split(order, parts)]
    return [order[start : start + size].tolist() for start in range(0, count, size)]


def fill_last_minibatch(count: int, size: int, rng: np.random.Generator) -> list[int]:
    """All rows in their order, and as many of them again, drawn at random, as make the last mini-batch whole."""
    missing = -count % size
    return [*range(count), *rng.choice(count, missing, replace=missing > count).tolist()]
