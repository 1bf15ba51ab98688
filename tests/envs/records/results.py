"""Comparison of the results on several databases, as the environment does it one by one."""

from __future__ import annotations

from collections.abc import Sequence

from fedagentgym.envs.records.grading import ColumnOrders, keep_orders
from fedagentgym.envs.records.guard import Result


def match_results(golds: Sequence[Result], given: Sequence[Result], *, ordered: bool) -> bool:
    """Return whether the given results are those of the gold on every database, with one order of the columns for all."""
    orders: ColumnOrders | None = None
    for gold, one in zip(golds, given, strict=True):
        orders = keep_orders(orders, gold, one, ordered=ordered)
    return orders is None or bool(orders)
