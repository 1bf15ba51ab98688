"""Statistics against hand-made cases."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.statistics import compare_with_chance, compute_statistics, jaccard
from fedagentgym.partitions.table import TaskTable

TABLE = TaskTable(
    [f"t{number}" for number in range(8)],
    ("a", "b"),
    np.array([0, 0, 0, 0, 0, 0, 1, 1]),
    np.arange(8),
    np.array([True, False] * 4),
)
HELD = Assignment.from_lists([[0, 1, 6, 7], [0, 2, 4], []])


def test_by_hand() -> None:
    found = compute_statistics(HELD, TABLE, "preference")
    assert found.sizes.tolist() == [4, 3, 0]
    assert found.counts.tolist() == [[2, 2], [3, 0], [0, 0]]
    assert found.distances.tolist() == pytest.approx([0.25, 0.25, 0.5])
    assert found.copies.tolist() == [2, 1, 1, 0, 1, 0, 1, 1]
    assert found.jaccard_max == pytest.approx(1 / 6) and found.jaccard_mean == pytest.approx(1 / 18)
    assert found.solved is not None and found.solved.tolist() == [2, 3, 0]
    assert found.worst_client == 2
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["mixture"]["clients"] == pytest.approx({"a": 0.5, "b": 1 / 6})
    assert plain["overlap"]["covered"] == 0.75 and plain["sizes"]["max"] == 4
    assert compute_statistics(HELD, TABLE.with_solved(None), "uniform").to_dict().get("hardness") is None


def test_jaccard_of_many_clients_is_a_sample() -> None:
    same = Assignment.from_lists([[1, 2]] * 1200)
    assert jaccard(same, 5) == (1.0, 1.0)
    assert jaccard(Assignment.from_lists([[1]]), 5) == (0.0, 0.0)


def test_excess_is_one_by_chance_and_large_when_sorted() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 3000)
    nothing = np.zeros(3000, dtype=np.int64)
    by_chance = Assignment.from_lists([rng.choice(3000, 50, replace=False) for _ in range(300)])
    ratio, z = compare_with_chance(by_chance, labels, nothing)
    assert ratio == pytest.approx(1.0, abs=0.2) and abs(z) < 4
    ordered = np.argsort(labels, kind="stable").reshape(60, 50)
    assert compare_with_chance(Assignment.from_lists(ordered), labels, nothing).z > 50
    assert compare_with_chance(Assignment.from_lists(ordered), labels, labels) == (1.0, 0.0)


def test_worst_client_and_dispersion_names() -> None:
    assert compute_statistics(HELD, TABLE, "coverage").dispersion()[0].startswith("standard deviation of sizes")
    assert compute_statistics(HELD, TABLE, "hardness").dispersion()[0].startswith("standard deviation of solved")
