"""Comparison of query results, as graders of SQL compare them.

Rows are compared as a multiset, and in their order only if the question asks for one. Whole numbers and texts must be
identical, a decimal number equals another number within a tolerance, and an empty value equals an empty value. Up to four
columns (`MAX_PERMUTED_COLUMNS`) may come in another order, the same on every database, because a question does not say
which column is the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from fedagentgym.envs.records.guard import Result

RECORDS_VERIFIER_VERSION = "records/1"
TOLERANCE = 1e-6
ROUNDING = 1e-12
"""The relative error that the order of summation can cause."""
MAX_PERMUTED_COLUMNS = 4
"""Maximum number of columns that may come in any order."""
Row = tuple[Any, ...]
ColumnOrders = tuple[tuple[int, ...], ...]


def keep_orders(orders: ColumnOrders | None, gold: Result, given: Result, *, ordered: bool) -> ColumnOrders:
    """The orders of columns, among `orders`, in which a result equals the gold; `None` stands for all orders.

    >>> gold, given = Result(("a", "b"), [(1, "x"), (2.0, None)]), Result(("b", "a"), [(None, 2), ("x", 1)])
    >>> keep_orders(None, gold, given, ordered=False), keep_orders(None, gold, given, ordered=True)
    (((1, 0),), ())
    """
    if len(gold.columns) != len(given.columns):
        return ()
    if orders is None:
        columns = range(len(gold.columns))
        orders = tuple(permutations(columns)) if len(columns) <= MAX_PERMUTED_COLUMNS else (tuple(columns),)
        if len(orders) > 1:  # a column can only stand for one with the same values, which excludes most orders
            alike = [[_match(*_take(gold, one, given, other), ordered) for other in columns] for one in columns]
            orders = tuple(order for order in orders if all(alike[one][other] for one, other in enumerate(order)))
    in_place = tuple(range(len(gold.columns)))
    return tuple(
        order
        for order in orders
        if _match(gold.rows, given.rows if order == in_place else _pick(given, order), ordered)
    )


def _take(gold: Result, one: int, given: Result, other: int) -> tuple[list[Row], list[Row]]:
    return [(row[one],) for row in gold.rows], [(row[other],) for row in given.rows]


def _pick(result: Result, order: Sequence[int]) -> list[Row]:
    return [tuple(row[place] for place in order) for row in result.rows]


def _match(gold: list[Row], given: list[Row], ordered: bool) -> bool:
    if len(gold) != len(given):
        return False
    if gold == given:
        return True
    if ordered:
        return _equal_rows(gold, given)
    if _equal_rows(sorted(gold, key=_sort_key), sorted(given, key=_sort_key)):
        return True
    if not gold or len(gold[0]) == 1:
        return False
    level = _find_levels((*gold, *given))
    return _equal_rows(*(sorted(rows, key=lambda row: _sort_key(row, level)) for rows in (gold, given)))


def _equal_rows(gold: list[Row], given: list[Row]) -> bool:
    return all(
        _equal_values(one, other) for rows in zip(gold, given, strict=True) for one, other in zip(*rows, strict=True)
    )


def _sort_key(row: Row, level: Mapping[float, float] | None = None) -> tuple[Any, ...]:
    """A key by which rows are sorted. It has numbers last, so that rows which differ in inexact numbers only are neighbours."""
    kinds = tuple(_find_kind(value) for value in row)
    numbers = tuple(value if level is None else level[value] for value in row if _is_number(value))
    return kinds, tuple(_plain(value) for value in row if not _is_number(value)), numbers


def _find_levels(rows: Sequence[Row]) -> dict[float, float]:
    """One number for all numbers that differ by rounding only. Without it, rows with 0.1 + 0.2 and 0.3 could be sorted
    differently in two results; with it, both are equal and the next column decides."""
    found: dict[float, float] = {}
    last = math.nan
    for value in sorted({value for row in rows for value in row if _is_number(value)}):
        first = found[last] if math.isclose(value, last, rel_tol=ROUNDING, abs_tol=ROUNDING) else value
        found[value], last = first, value
    return found


def _find_kind(value: Any) -> int:
    return 0 if value is None else 1 if _is_number(value) else 2 if isinstance(value, str) else 3


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _plain(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _equal_values(one: Any, other: Any) -> bool:
    if _is_number(one) and _is_number(other) and not (isinstance(one, int) and isinstance(other, int)):
        return one == other or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(one) is type(other) and bool(one == other)
