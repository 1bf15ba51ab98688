"""Sets of real numbers against plain membership: which of the ends, and of the numbers between them, belong to a set."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.envs.verifiers.mathematics.regions import (
    INFINITE,
    End,
    Interval,
    Region,
    compare_ends,
    complement,
    intersect,
    same_regions,
    solve,
    unite,
)
from fedagentgym.envs.verifiers.mathematics.syntax import parse
from fedagentgym.envs.verifiers.mathematics.values import context

ROOT_2, ROOT_3 = context().sqrt(2), context().sqrt(3)
ENDS: tuple[End, ...] = (
    -INFINITE,
    -ROOT_3,
    Fraction(-3, 2),
    Fraction(0),
    Fraction(1, 3),
    ROOT_2,
    Fraction(141_422, 100_000),
    ROOT_3,
    Fraction(2),
    INFINITE,
)
"""In ascending order, so that an end is known by its place."""
PLACES = range(1, 2 * len(ENDS) - 2)
"""The end at place k of `ENDS` is 2k here; odd numbers lie between two ends."""


def make_interval(low: int, low_closed: bool, high: int, high_closed: bool) -> Interval:
    return Interval(ENDS[low], low_closed and low > 0, ENDS[high], high_closed and high < len(ENDS) - 1)


def list_members(pieces: Sequence[Interval]) -> set[int]:
    """Which of the places belong to one of the intervals."""
    found: set[int] = set()
    for piece in pieces:
        low, high = 2 * ENDS.index(piece.low), 2 * ENDS.index(piece.high)
        found |= set(range(low + 1, high))
        if low == high:
            found |= {low} if piece.low_closed and piece.high_closed else set()
        elif low < high:
            found |= {low} if piece.low_closed else set()
            found |= {high} if piece.high_closed else set()
    return found


intervals = st.builds(
    make_interval, st.integers(0, len(ENDS) - 2), st.booleans(), st.integers(1, len(ENDS) - 1), st.booleans()
)
several = st.lists(intervals, max_size=4)


@pytest.mark.parametrize("place", range(len(ENDS)))
def test_ends_are_ordered(place: int) -> None:
    assert [compare_ends(ENDS[place], other) for other in ENDS] == [
        (place > other) - (place < other) for other in range(len(ENDS))
    ]


def test_ends_that_agree_in_all_digits_that_are_computed_are_the_same() -> None:
    close, apart = ROOT_2 * (1 + context().mpf(10) ** -50), ROOT_2 * (1 + context().mpf(10) ** -40)
    assert compare_ends(ROOT_2, close) == compare_ends(close, ROOT_2) == 0
    assert (compare_ends(ROOT_2, apart), compare_ends(apart, ROOT_2)) == (-1, 1)


@settings(deadline=None, max_examples=80)
@given(several, several)
def test_sets_hold_what_their_parts_say(some: list[Interval], others: list[Interval]) -> None:
    one, other = unite(some), unite(others)
    in_one, in_other = list_members(some), list_members(others)
    assert list_members(one) == in_one
    assert list_members(intersect(one, other)) == in_one & in_other
    assert list_members(complement(one)) == set(PLACES) - in_one
    assert same_regions(complement(complement(one)), one)
    assert same_regions(one, other) == (in_one == in_other)


SIGNS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<": operator.lt,
    "\\le": operator.le,
    ">": operator.gt,
    "\\ge": operator.ge,
    "\\ne": operator.ne,
    "=": operator.eq,
}


def contains(region: Region, number: Fraction) -> bool:
    return any(
        piece.low < number < piece.high
        or (piece.low_closed and number == piece.low)
        or (piece.high_closed and number == piece.high)
        for piece in region
    )


@settings(deadline=None, max_examples=80)
@given(
    slope=st.sampled_from([-3, -2, -1, 1, 2, 3]),
    start=st.integers(-4, 4),
    bound=st.integers(-4, 4),
    sign=st.sampled_from(sorted(SIGNS)),
    absolute=st.booleans(),
    turned=st.booleans(),
)
def test_inequalities_hold_where_their_solution_says(
    slope: int, start: int, bound: int, sign: str, absolute: bool, turned: bool
) -> None:
    linear = parse(f"|{slope}x+{start}|" if absolute else f"{slope}x+{start}")
    region = solve(parse(str(bound)), sign, linear) if turned else solve(linear, sign, parse(str(bound)))
    assert region is not None
    roots = [Fraction(side - start, slope) for side in (bound, -bound)]
    for number in [root + beside for root in roots for beside in (-20, Fraction(-1, 6), 0, Fraction(1, 6), 20)]:
        value = slope * number + start
        sides = (abs(value) if absolute else value, Fraction(bound))
        assert contains(region, number) == SIGNS[sign](*(sides[::-1] if turned else sides))


@pytest.mark.parametrize(
    ("left", "right"),
    [("x", "y"), ("1", "2"), ("x^2", "4"), ("x-x", "1"), ("|x^2|", "4"), ("|x|", "x"), ("ix", "1"), ("x", "i")],
)
def test_what_is_not_linear_in_one_unknown_is_not_solved(left: str, right: str) -> None:
    assert solve(parse(left), "<", parse(right)) is None
