"""The conformance check of samplers names what is wrong with a bad one (ours pass: `tests/foundations/test_registries.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedagentgym.partitions import SAMPLERS
from fedagentgym.partitions.table import TaskTable
from fedagentgym.registration import register_sampler
from fedagentgym.testing import check_sampler


@pytest.fixture
def bad() -> Iterator[str]:
    yield "test-bad"
    SAMPLERS._entries.pop("test-bad", None)


def _check(function: Any, **parameters: Any) -> None:
    register_sampler("test-bad", function, replace=True)
    check_sampler("test-bad", **parameters)


def test_bad_ones_are_named(bad: str) -> None:
    def fixed(table: TaskTable, clients: int, seed: int) -> list[list[str]]:
        return [[table.ids[client]] for client in range(clients)]

    def restless(table: TaskTable, clients: int, seed: int) -> list[list[str]]:
        return [[table.ids[int(np.random.randint(len(table)))]] for _ in range(clients)]

    def twice(table: TaskTable, clients: int, seed: int) -> list[list[str]]:
        return [[table.ids[seed]] * 2 for _ in range(clients)]

    def short(table: TaskTable, clients: int, seed: int) -> list[list[str]]:
        return [[table.ids[seed]]]

    with pytest.raises(AssertionError, match="does not depend on the seed"):
        _check(fixed)
    with pytest.raises(AssertionError, match="global generator"):
        _check(restless)
    with pytest.raises(AssertionError, match="an item twice"):
        _check(twice)
    with pytest.raises(AssertionError, match="made 1 clients, 10 were asked for"):
        _check(short)
    with pytest.raises(AssertionError, match="unknown sampler 'test-worse'"):
        check_sampler("test-worse")
    with pytest.raises(AssertionError, match="tasks_per_client"):
        check_sampler("uniform", tasks_per_client=0)
