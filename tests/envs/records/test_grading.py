"""Results are compared as a multiset of rows, in order where it is asked for, numbers within a tolerance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.envs.records.guard import Result
from tests.envs.records.results import match_results

CELLS = (
    st.none()
    | st.integers(-5, 5)
    | st.floats(-5, 5, width=16)
    | st.sampled_from(["a", "b", "1", ""])
    | st.binary(max_size=1)
)


def make(*rows: tuple[Any, ...]) -> Result:
    return Result(tuple(f"c{n}" for n in range(len(rows[0]) if rows else 1)), list(rows))


@st.composite
def results(draw: st.DrawFn) -> Result:
    width = draw(st.integers(1, 3))
    rows = draw(st.lists(st.tuples(*[CELLS] * width), max_size=6))
    return Result(tuple("abc"[:width]), rows)


@pytest.mark.parametrize(
    ("gold", "given", "ordered", "equal"),
    [
        (make((1,), (2,)), make((2,), (1,)), False, True),
        (make((1,), (2,)), make((2,), (1,)), True, False),
        (make((1,), (1,)), make((1,)), False, False),
        (make((1,)), make((1.0,)), True, True),
        (make((1 / 3,)), make((0.33333333,)), False, True),
        (make((1 / 3,)), make((0.3333,)), False, False),
        (make((1e12,)), make((1e12 + 1,)), False, True),
        (make((1,)), make(("1",)), False, False),
        (make((None,)), make((0,)), False, False),
        (make((None,)), make(("",)), False, False),
        (make((None,)), make((None,)), False, True),
        (make(("a",)), make(("A",)), False, False),
        (make(("a",)), make((b"a",)), False, False),
        (make(("a", 1)), make((1, "a")), True, True),
        (make((1, 2), (2, 1)), make((2, 1), (1, 2)), True, True),
        (make((1, 2), (3, 4)), make((2, 1), (3, 4)), False, False),
        (make((1,)), make((1, 1)), False, False),
        (make((0.1 + 0.2, "a"), (0.3, "b")), make((0.3, "a"), (0.1 + 0.2, "b")), False, True),
        (make((float("inf"),)), make((float("inf"),)), False, True),
    ],
)
def test_pairs(gold: Result, given: Result, ordered: bool, equal: bool) -> None:
    assert match_results([gold], [given], ordered=ordered) is equal
    assert match_results([given], [gold], ordered=ordered) is equal


def test_the_columns_come_in_one_order_on_all_databases() -> None:
    first, second = make((1, 2)), make((3, 4))
    assert match_results([first, second], [make((2, 1)), make((4, 3))], ordered=False)
    assert not match_results([first, second], [make((2, 1)), make((3, 4))], ordered=False)


@given(results(), st.randoms(use_true_random=False))
def test_any_order_of_rows_and_columns_is_the_same(result: Result, draw: Any) -> None:
    rows, columns = list(result.rows), list(range(len(result.columns)))
    draw.shuffle(rows)
    draw.shuffle(columns)
    moved = Result(tuple(result.columns[n] for n in columns), [tuple(row[n] for n in columns) for row in rows])
    assert match_results([result], [moved], ordered=False)


@given(results(), CELLS)
def test_another_row_more_is_another_result(result: Result, cell: Any) -> None:
    more = result._replace(rows=[*result.rows, (cell,) * len(result.columns)])
    assert not match_results([result], [more], ordered=False) and not match_results([more], [result], ordered=True)
