"""Comparison of query results, as graders of SQL compare them.

Rows are compared as a multiset, and in their order only if the question asks for one. Numbers are equal within a
tolerance, whether integer or not; texts are equal as they are; an empty value equals an empty value. Columns may come
in another order, the same on every database: a question does not say which column is the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import Any

from fedagentgym.envs.records.guard import Result

RECORDS_VERIFIER_VERSION = "records/1"
TOLERANCE = 1e-6
MAX_PERMUTED_COLUMNS = 4
"""Columns up to which their order is free."""
Row = tuple[Any, ...]
ColumnOrders = tuple[tuple[int, ...], ...]


def keep_orders(orders: ColumnOrders | None, gold: Result, given: Result, *, ordered: bool) -> ColumnOrders:
    """Those of the orders of columns in which a result is the gold's; `None` stands for all that there are.

    >>> gold, given = Result(("a", "b"), [(1, "x"), (2.0, None)]), Result(("b", "a"), [(None, 2), ("x", 1)])
    >>> keep_orders(None, gold, given, ordered=False), keep_orders(None, gold, given, ordered=True)
    (((1, 0),), ())
    """
    if len(gold.columns) != len(given.columns):
        return ()
    if orders is None:
        columns = range(len(gold.columns))
        orders = tuple(permutations(columns)) if len(columns) <= MAX_PERMUTED_COLUMNS else (tuple(columns),)
    in_place = tuple(range(len(gold.columns)))
    return tuple(
        order
        for order in orders
        if _match(gold.rows, given.rows if order == in_place else _pick(given, order), ordered)
    )


def _pick(result: Result, order: Sequence[int]) -> list[Row]:
    return [tuple(row[place] for place in order) for row in result.rows]


def _match(gold: list[Row], given: list[Row], ordered: bool) -> bool:
    if len(gold) != len(given):
        return False
    if gold == given:
        return True
    if not ordered:
        gold, given = sorted(gold, key=_sort_key), sorted(given, key=_sort_key)
    return all(
        _equal_values(one, other) for rows in zip(gold, given, strict=True) for one, other in zip(*rows, strict=True)
    )


def _sort_key(row: Row) -> tuple[Any, ...]:
    """Rows that differ in nothing but inexact numbers come next to each other: numbers are compared last."""
    kinds = tuple(_find_kind(value) for value in row)
    return kinds, tuple(_plain(value) for value in row if not _is_number(value)), tuple(filter(_is_number, row))


def _find_kind(value: Any) -> int:
    return 0 if value is None else 1 if _is_number(value) else 2 if isinstance(value, str) else 3


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _plain(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


def _equal_values(one: Any, other: Any) -> bool:
    if _is_number(one) and _is_number(other):
        return one == other or math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(one) is type(other) and bool(one == other)
