"""Pools for partition tests: shares like WebShop's, ids in any order, labels that come from a fixed stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedagentgym.base.streams import stream
from fedagentgym.envs.pool import TaskPool
from fedagentgym.partitions.table import TaskTable, encode_values

WEBSHOP = {"fashion": 0.783, "garden": 0.140, "beauty": 0.031, "electronics": 0.029, "grocery": 0.017}


def make_table(items: int, shares: dict[str, float] = WEBSHOP, solved: float = 0.4, seed: int = 0) -> TaskTable:
    draws = stream(seed, "test table")
    codes = draws.weighted(list(shares.values()), size=items)
    order = sorted(shares)
    rank = np.array([order.index(name) for name in shares])
    labels = draws.uniform(items) < solved
    present, codes = np.unique(rank[codes], return_inverse=True)
    names = tuple(order[code] for code in present)
    users = encode_values((stream(seed, "test users").permutation(items) % max(items // 8, 1)).tolist())
    ids = [f"t/train/{number:07d}" for number in range(items)]
    return TaskTable(ids, names, codes, np.arange(items), labels, {"user": users}.__getitem__)


def make_pool(items: int, env: str = "fedagentgym/Guess-v0", seed: int = 0, reverse: bool = False) -> TaskPool:
    table = make_table(items, seed=seed)
    rows = [
        {"id": name, "category": table.names[code], "payload": number}
        for number, (name, code) in enumerate(zip(table.ids, table.codes.tolist(), strict=True))
    ]
    return TaskPool.from_records(rows[::-1] if reverse else rows, env=env)


@pytest.fixture(scope="session")
def table_of() -> Callable[..., TaskTable]:
    return make_table


@pytest.fixture(scope="session")
def pool_of() -> Callable[..., TaskPool]:
    return make_pool
