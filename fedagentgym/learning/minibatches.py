"""Which rows go into which optimizer step.

`minibatches: 4` cuts a pass into four steps, however many rows there are. `minibatch_rows: 64` makes steps of 64 rows, however
many steps that takes: where every turn is a row, longer episodes then mean more steps, as in the published agent code.
"""

from __future__ import annotations

import numpy as np

from fedagentgym.learning.settings import LearningSettings


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
