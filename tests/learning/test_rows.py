"""Which rows go into which optimizer step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import generator
from fedagentgym.learning.passes import split_minibatches
from fedagentgym.learning.settings import LearningSettings

counts = st.integers(0, 200)
sizes = st.integers(1, 70)


def split(count: int, seed: int = 0, **options: Any) -> list[list[int]]:
    return split_minibatches(count, LearningSettings.load(options), generator(seed, 0))


@given(counts, sizes, st.integers(0, 3))
def test_steps_of_so_many_rows_hold_every_row_once(count: int, size: int, seed: int) -> None:
    parts = split(count, seed, minibatch_rows=size)
    assert sorted(row for part in parts for row in part) == list(range(count))
    assert len(parts) == -(-count // size)
    assert all(len(part) == size for part in parts[:-1])
    assert parts == split(count, seed, minibatch_rows=size)


@given(counts, sizes)
def test_filled_steps_are_whole_and_keep_the_order(count: int, size: int) -> None:
    parts = split(count, minibatch_rows=size, minibatch_fill=True)
    rows = [row for part in parts for row in part]
    assert rows[:count] == list(range(count)) and set(rows) == set(range(count))
    assert all(len(part) == size for part in parts) and len(parts) == -(-count // size)
    again = rows[count:]
    assert len(set(again)) == len(again) or len(again) > count, "no row is drawn twice while there are others"


@given(st.integers(1, 200), st.integers(1, 9))
def test_a_number_of_steps_cuts_the_rows_evenly(count: int, parts: int) -> None:
    found = split(count, minibatches=parts)
    assert sorted(row for part in found for row in part) == list(range(count))
    assert len(found) == min(parts, count)
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_a_step_that_holds_all_rows_keeps_their_order() -> None:
    for options in ({}, {"minibatch_rows": 5}, {"minibatch_rows": 9}):
        assert split(5, **options) == [list(range(5))]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"minibatch_rows": 4, "minibatches": 2}, "give one of them"),
        ({"minibatch_fill": True}, "needs minibatch_rows"),
        ({"minibatch_rows": 0}, "at least 1"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        split(4, **options)
