"""The tasks of a policy step, drawn from a pool by `learning.task_order`. Nothing here needs torch.

    drawn      each task by itself, with replacement: a step may hold a task twice
    distinct   no task a second time in a step before every task of the pool is in it once
    epochs     the pool in a shuffled order, pass after pass: no task a second time before every task was played once

With `epochs` passes follow each other in an endless list, each shuffled by a stream of (seed, number of the pass), and step s
holds the places s * count to (s + 1) * count - 1 of the list. So the tasks follow from the seed and the number of the step alone:
nothing is kept between steps, and a run that goes on elsewhere draws the same. A step at the end of a pass begins the next one;
no task is left out.
"""

from __future__ import annotations

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import Stream, stream
from fedagentgym.learning.settings import TaskOrder


def draw_places(order: TaskOrder, size: int, count: int, draws: Stream, *, seed: int, step: int) -> list[int]:
    """Draw the places in a pool of the tasks of one step.

    Args:
        order: The order.
        size: Tasks of the pool.
        count: Tasks of a step.
        draws: The stream of the step, for `drawn` and `distinct`.
        seed: The seed of the passes, the same in all steps of a site.
        step: Steps before this one whose tasks were drawn from the pool, for `epochs`.

    Returns:
        As many places.

    Raises:
        OptionError: If the pool is empty.

    >>> sorted(place for step in (0, 1) for place in draw_places("epochs", 4, 2, stream(0), seed=7, step=step))
    [0, 1, 2, 3]
    """
    if size < 1:
        raise OptionError("there is no task to draw: the pool is empty")
    if order == "drawn":
        return [int(place) for place in draws.integers(size, count)]
    if order == "distinct":
        drawn: list[int] = []
        while len(drawn) < count:
            drawn += draws.permutation(size).tolist()
        return drawn[:count]
    first = step * count
    passes = range(first // size, (first + count - 1) // size + 1)
    listed = [place for number in passes for place in stream(seed, "pass", number).permutation(size).tolist()]
    return listed[first % size :][:count]
