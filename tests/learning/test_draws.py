"""The three orders of tasks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import stream
from fedagentgym.learning.draws import draw_places
from fedagentgym.learning.settings import LearningSettings, TaskOrder

sizes, counts, seeds, steps = st.integers(1, 40), st.integers(1, 60), st.integers(0, 5), st.integers(0, 50)


def draw(order: TaskOrder, size: int, count: int, seed: int, step: int) -> list[int]:
    return draw_places(order, size, count, stream(seed, "tasks", step), seed=seed, step=step)


@given(st.sampled_from(["drawn", "distinct", "epochs"]), sizes, counts, seeds, steps)
def test_a_step_has_as_many_tasks_of_the_pool_as_it_asks_for(
    order: TaskOrder, size: int, count: int, seed: int, step: int
) -> None:
    places = draw(order, size, count, seed, step)
    assert len(places) == count and set(places) <= set(range(size))
    assert places == draw(order, size, count, seed, step), "the same seed and step give the same tasks"


@given(sizes, counts, seeds, steps)
def test_drawn_are_the_tasks_that_were_drawn_before_there_was_a_choice(
    size: int, count: int, seed: int, step: int
) -> None:
    before = stream(seed, "tasks", step).integers(size, count)
    assert draw("drawn", size, count, seed, step) == before.tolist()


@given(sizes, counts, seeds, steps)
def test_distinct_tasks_are_all_in_a_step_before_one_is_twice(size: int, count: int, seed: int, step: int) -> None:
    places = draw("distinct", size, count, seed, step)
    for first in range(0, count, size):
        part = places[first : first + size]
        assert len(set(part)) == len(part)


@given(sizes, counts, seeds, st.integers(1, 20))
def test_epochs_meet_every_task_once_in_each_pass(size: int, count: int, seed: int, taken: int) -> None:
    """Over any steps, whether a pass ends within one or not."""
    listed = [place for step in range(taken) for place in draw("epochs", size, count, seed, step)]
    for first in range(0, len(listed), size):
        part = listed[first : first + size]
        assert len(set(part)) == len(part)
    met = Counter(listed)
    assert max(met.values()) - min(met.get(place, 0) for place in range(size)) <= 1


def test_passes_are_shuffled_anew_and_follow_from_their_seed_alone() -> None:
    passes = [tuple(draw("epochs", 20, 20, 3, number)) for number in range(4)]
    assert len(set(passes)) == 4 and passes[0] != tuple(range(20))
    assert draw("epochs", 20, 20, 4, 0) != list(passes[0])
    other = draw_places("epochs", 20, 20, stream(99), seed=3, step=0)
    assert other == list(passes[0]), "the stream of the step is that of a round, in which no pass need end"


def test_a_pool_that_grows_goes_on_with_the_tasks_that_it_has() -> None:
    assert set(draw("epochs", 9, 4, 0, 3)) <= set(range(9)) and set(draw("epochs", 5, 4, 0, 3)) <= set(range(5))


@pytest.mark.parametrize("order", ["drawn", "distinct", "epochs"])
def test_an_empty_pool_is_one_error(order: TaskOrder) -> None:
    with pytest.raises(OptionError, match="the pool is empty"):
        draw(order, 0, 1, 0, 0)


def test_the_default_is_left_out_of_what_a_digest_is_made_of() -> None:
    assert "task_order" not in LearningSettings().model_dump(mode="json")
    assert LearningSettings(task_order="epochs").model_dump(mode="json")["task_order"] == "epochs"
