"""The tasks of a policy step, drawn from a pool by `learning.task_order`. Nothing here needs torch.

    drawn      independent draws with replacement; a step may hold a task twice
    distinct   a step repeats a task only after it holds every task of the pool
    epochs     passes over the pool in a shuffled order; a task is repeated only after every task was played

With `epochs`, passes follow each other in an endless list, each shuffled by a stream of (seed, number of the pass), and step s
holds the places s * count to (s + 1) * count - 1 of the list. So the tasks follow from the seed and the number of the step alone:
nothing is kept between steps, and a resumed run draws the same tasks. A step at the end of a pass takes the rest of its tasks
from the next pass, so that no task is left out.
"""

from __future__ import annotations

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import Stream, stream
from fedagentgym.learning.settings import TaskOrder


def draw_places(order: TaskOrder, size: int, count: int, draws: Stream, *, seed: int, step: int) -> list[int]:
    """Draw the tasks of one step, as places in the pool.

    Args:
        order: The value of `learning.task_order`.
        size: Number of tasks in the pool.
        count: Number of tasks in a step.
        draws: The stream of the step, for `drawn` and `distinct`.
        seed: The seed of the passes, the same in all steps of a site.
        step: Number of earlier steps whose tasks were drawn from the pool, for `epochs`.

    Returns:
        `count` places.

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
