"""Results are compared as a multiset of rows, in order where it is asked for, numbers within a tolerance."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import permutations
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
        (make((10**12,)), make((10**12 + 1,)), False, False),
        (make((1000001,)), make((1000001.0000001,)), False, True),
        (make((0.3, 1), (0.1 + 0.2, 2)), make((0.1 + 0.2, 1), (0.3, 2)), False, True),
        (make((0.3, 1.5), (0.1 + 0.2, 2.5)), make((0.1 + 0.2, 1.5), (0.3, 2.5)), False, True),
        (make((0.3, 1), (0.4, 2)), make((0.4, 1), (0.3, 2)), False, False),
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


ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2, 1000001, 1000002]),
        st.sampled_from("pqr"),
        st.sampled_from([0.1, 0.2, 0.3, 1 / 3]),
        st.sampled_from([0.1, 0.7, 2.0, None]),
    ),
    max_size=12,
)
SAME = [
    ["avg({0})", "sum({0}) * 1.0 / count({0})", "total({0}) / count({0})"],
    ["sum({0})", "sum({0} / 3.0) * 3"],
    ["max({0})", "-min(-{0})"],
    ["count({0})", "sum({0} IS NOT NULL)"],
    ["count(*)", "sum(1)"],
]


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, str]:
    """Two queries that ask for the same, or nearly: other spellings of aggregates, other columns, another order."""
    kinds = draw(st.lists(st.sampled_from(SAME), min_size=1, max_size=3))
    names = [draw(st.sampled_from("axy")) for _ in kinds]
    group = draw(st.sampled_from(["", " GROUP BY k"]))
    first, second = (
        [draw(st.sampled_from(kind)).format(name) for kind, name in zip(kinds, names, strict=True)] for _ in range(2)
    )
    if draw(st.booleans()):
        second = draw(st.permutations(second))
    if not draw(st.integers(0, 4)):
        second[0] = draw(st.sampled_from(["min(x)", "count(a)", "sum(y)"]))
    orders = [draw(st.sampled_from(["", " ORDER BY 1", " ORDER BY 1 DESC"])) for _ in range(2)]
    texts = [
        f"SELECT {', '.join(columns)} FROM t{group}{order}"
        for columns, order in zip((first, second), orders, strict=True)
    ]
    return texts[0], texts[1]


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int) and float in (type(one), type(other)):
        return abs(one - other) <= 1e-6 * max(1.0, abs(one), abs(other))
    return type(one) is type(other) and bool(one == other)


def can_pair(rows: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether every row has another one to itself that is the same: a matching, found by augmenting paths."""
    taken: dict[int, int] = {}

    def find(number: int, tried: set[int]) -> bool:
        for place, other in enumerate(others):
            if place not in tried and all(map(is_same, rows[number], other)):
                tried.add(place)
                if place not in taken or find(taken[place], tried):
                    taken[place] = number
                    return True
        return False

    return all(find(number, set()) for number in range(len(rows)))


@given(ROWS, queries())
def test_verdicts_are_those_of_a_search_for_pairs(rows: list[Any], asked: tuple[str, str]) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a INTEGER, k TEXT, x REAL, y REAL)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    found = []
    for query in asked:
        cursor = connection.execute(query)
        found.append(Result(tuple(column[0] for column in cursor.description), cursor.fetchall()))
    gold, other = found
    moved = [
        [tuple(row[place] for place in order) for row in other.rows]
        for order in permutations(range(len(other.columns)))
    ]
    assert match_results([gold], [other], ordered=False) is (
        len(gold.rows) == len(other.rows) and any(can_pair(gold.rows, one) for one in moved)
    )
    assert match_results([gold], [other], ordered=True) is (
        len(gold.rows) == len(other.rows)
        and any(all(all(map(is_same, *pair)) for pair in zip(gold.rows, one, strict=True)) for one in moved)
    )
