"""Rank bands against the comparison of two entries alone."""

from __future__ import annotations

import numpy as np
import pytest

from fedagentgym.leaderboard.intervals import CONFIDENCE, Values, compare_scenarios, correct_for_many
from fedagentgym.leaderboard.site.bands import rank

TASKS, SEEDS = 60, 2


def draw(shares: dict[str, float]) -> dict[str, dict[str, Values]]:
    """Entries that solve these shares of the tasks of two scenarios."""
    draws = np.random.default_rng(7)
    return {
        name: {scenario: (draws.random((SEEDS, TASKS)) < share).astype(float) for scenario in ("a", "b")}
        for name, share in shares.items()
    }


def test_a_band_holds_whoever_is_not_significantly_worse_than_its_leader() -> None:
    values = draw({"best": 0.9, "near": 0.87, "middle": 0.6, "low": 0.3, "lower": 0.27})
    places = rank(values)
    means = {name: np.mean([table.mean() for table in tables.values()]) for name, tables in values.items()}
    order = sorted(values, key=lambda name: -means[name])
    assert [places[name].rank for name in order] == [1, 2, 3, 4, 5]
    assert [places[name].band for name in order] == [1, 1, 2, 3, 3]
    others = order[1:]
    found = correct_for_many([compare_scenarios(values[order[0]], values[name]) for name in others])
    for name, difference in zip(others, found, strict=True):
        assert (difference.adjusted < 1 - CONFIDENCE) == (places[name].band > 1)
    told = places[others[0]].difference
    assert told is not None
    assert told[:3] == pytest.approx(found[0][:3], abs=1e-9)
    assert told.p == pytest.approx(found[0].p, abs=0.05), "but for resamples whose difference is 0 up to rounding"


def test_equal_entries_share_a_band_in_the_order_of_their_names() -> None:
    one = draw({"x": 0.5})["x"]
    places = rank({"b": one, "a": one, "c": one})
    assert [places[name].rank for name in "abc"] == [1, 2, 3] and {place.band for place in places.values()} == {1}
    assert rank({}) == {}


def test_less_can_be_better() -> None:
    values = draw({"high": 0.9, "low": 0.1})
    assert rank(values, "lower")["low"].rank == 1
