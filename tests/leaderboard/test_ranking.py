"""Order, bands and planned differences, on both tracks."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fedagentgym.base.statistics import LEVEL, Difference, Values, correct, find_decidable
from fedagentgym.leaderboard.rank import (
    compare_entries,
    compare_pairs,
    find_outcome,
    find_reach,
    rank,
    read_difference,
    read_planned,
)
from fedagentgym.leaderboard.suite import Suite, Track
from tests.leaderboard.samples import METHODS_SUITE


def draw(shares: dict[str, float], seeds: int = 1, spread: float = 0.0) -> dict[str, dict[str, Values]]:
    """Entries that solve these shares of the tasks of two scenarios, more or less from run to run."""
    draws = np.random.default_rng(7)
    return {
        name: {
            scenario: (draws.random((seeds, 200)) < draws.normal(share, spread, (seeds, 1))).astype(float)
            for scenario in ("a", "b")
        }
        for name, share in shares.items()
    }


@pytest.mark.parametrize(("track", "seeds"), [("agents", 1), ("methods", 8)])
def test_a_band_holds_whoever_is_not_significantly_worse_than_its_leader(track: Track, seeds: int) -> None:
    values = draw({"best": 0.9, "near": 0.89, "middle": 0.6, "low": 0.3, "lower": 0.29}, seeds, 0.01)
    places = rank(values, track, "success")
    order = sorted(places, key=lambda name: places[name].order)
    assert order == ["best", "near", "middle", "low", "lower"] or set(order[:2]) == {"best", "near"}
    assert [places[name].rank for name in order] == [1, 2, 3, 4, 5]
    assert [places[name].band for name in order] == [1, 1, 2, 3, 3]
    found = correct(
        [compare_entries(values[order[0]], values[name], "success", over_runs=track == "methods") for name in order[1:]]
    )
    assert [one.adjusted is not None and one.adjusted < LEVEL for one in found] == [False, True, True, True]


def test_too_few_runs_have_no_ranks() -> None:
    """Their bands are as wide as runs vary, and single runs are one band."""
    places = rank(draw({"best": 0.9, "near": 0.89, "low": 0.3}, 3, 0.01), "methods", "success")
    assert {place.rank for place in places.values()} == {None}
    assert (places["best"].band, places["near"].band, places["low"].band) == (1, 1, 2)
    assert {place.band for place in rank(draw({"best": 0.9, "low": 0.3}), "methods", "success").values()} == {1}


def test_equal_entries_share_a_band_nineteen_times_in_twenty() -> None:
    """All of eight entries with two runs each, without a test for any of them."""
    draws = np.random.default_rng(3).normal(0.6, 0.05, (500, 8, 2))
    apart = [np.ptp(runs.mean(axis=1)) > find_reach(runs.tolist()) for runs in draws]
    assert 0.01 <= np.mean(apart) <= 0.065


def test_equal_entries_share_a_band_in_the_order_of_their_names() -> None:
    one = draw({"x": 0.5})["x"]
    places = rank({"b": one, "a": one, "c": one}, "agents", "success")
    assert [places[name].rank for name in "abc"] == [1, 2, 3] and {place.band for place in places.values()} == {1}
    assert rank({}, "agents", "success") == {}


def test_less_can_be_better() -> None:
    assert rank(draw({"high": 0.9, "low": 0.1}), "agents", "turns")["low"].rank == 1


def test_a_pair_is_compared_where_both_have_played() -> None:
    """Runs are the unit: two of them show nothing, eight do."""
    for seeds, finding in ((2, "too few runs"), (8, "above")):
        values = draw({"learns": 0.9, "stays": 0.5}, seeds, 0.03)
        named = {name: {"uniform": one["a"]} for name, one in values.items()}
        (found,) = compare_pairs(METHODS_SUITE, named)
        assert (found.first, found.second, found.scenario) == ("learns", "stays", "uniform")
        assert len(found.difference.values) == seeds and read_difference(found.difference) == finding


def test_a_difference_is_read_only_as_far_as_it_goes() -> None:
    def read(mean: float, p: float | None, p_unequal: float | None) -> str:
        return read_difference(Difference(mean, p=p, adjusted=p, adjusted_unequal=p_unequal), "0.04")

    assert read(0.2, 0.001, 1.0) == "above" and read(-0.2, 0.001, 1.0) == "below"
    assert read(0.0, 1.0, 0.01) == "equal within 0.04" and read(0.1, 0.9, 0.9) == "not decided"
    assert read(0.02, 0.001, 0.01) == "above, equal within 0.04" and read(0.1, None, None) == "too few runs"


def test_what_is_not_decided_names_the_runs_that_it_takes() -> None:
    """Standard deviation 0.1: `find_decidable` is below 0.05 from that number of runs on, not before."""
    values = (0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.0)
    vague = Difference(0.0, p=1.0, adjusted=1.0, adjusted_unequal=1.0, values=values)
    shown = read_planned(vague, 0.05, 6, "5 points")
    runs, spread = int(shown.split()[3]), float(np.std(values, ddof=1))
    assert shown == f"not decided: takes {runs} runs for 5 points"
    assert find_decidable(spread, runs, 6) <= 0.05 < find_decidable(spread, runs - 1, 6)
    assert read_planned(replace(vague, values=()), 0.05, 6, "5 points") == "not decided"
    assert read_planned(vague, 0.5, 6, "50 points") == "not decided, though 5 runs would find 50 points"


def test_what_was_expected_is_held_against_what_came_out() -> None:
    draws = np.random.default_rng(0)
    runs = {"better": (0.8, 0.01), "same": (0.5, 0.01), "base": (0.5, 0.01), "vague": (0.53, 0.2)}
    values = {name: {"uniform": draws.normal(*run, (8, 1))} for name, run in runs.items()}
    plain = {
        "smallest_difference": 0.05,
        "spread": 0.02,
        "pairs": [],
        "seeds": list(range(8)),
        "baselines": {name: {} for name in runs},
    }
    given = [("better", "above"), ("better", "equal to"), ("same", "equal to"), ("same", "below"), ("vague", "above")]
    expected = [
        {"first": name, "relation": relation, "second": "base", "scenarios": ["uniform"]} for name, relation in given
    ]
    suite = Suite.load({**METHODS_SUITE.model_dump(exclude_unset=True), **plain, "expected": expected})
    assert suite.comparisons == [(name, "base", "uniform") for name in ("better", "same", "vague")]
    found = compare_pairs(suite, values)
    outcomes = [find_outcome(one, found)["uniform"] for one in suite.expected if not isinstance(one, str)]
    assert outcomes == ["as expected", "otherwise", "as expected", "otherwise", "not decided"]
    larger = suite.expected[0].model_copy(update={"by": 0.4}) if not isinstance(suite.expected[0], str) else None
    assert larger is not None and find_outcome(larger, found)["uniform"] == "so, but smaller"
    told = read_planned(found[2].difference, suite.smallest_difference, len(suite.comparisons), "5 points")
    assert re.fullmatch("not decided: takes [0-9,]+ runs for 5 points", told), told
    assert str(suite.expected[0]) == "better is above base in uniform"
