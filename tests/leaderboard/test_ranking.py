"""Order, bands and planned differences, on both tracks."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedagentgym.base.errors import OptionError
from fedagentgym.base.statistics import Difference, Values, compute_log_odds, find_decidable
from fedagentgym.leaderboard.rank import (
    Place,
    compare_suite,
    find_bands,
    find_decided,
    find_outcome,
    find_reach,
    rank,
    read_difference,
    read_planned,
)
from fedagentgym.leaderboard.suite import WHOLE, Suite
from tests.leaderboard.samples import METHODS_SUITE

SCENARIOS = ("a", "b")
METHODS = {
    "name": "some",
    "track": "methods",
    "title": "Some",
    "config": "demo",
    "scenarios": {name: {} for name in SCENARIOS},
}
GUESS: dict[str, dict[str, object]] = {name: {"env": "fedagentgym/Guess-v0"} for name in SCENARIOS}


def make_suite(**changes: object) -> Suite:
    return Suite.load({**METHODS, **changes})


AGENTS = Suite.load({"name": "some", "track": "agents", "title": "Some", "scenarios": GUESS})


def find_places(suite: Suite, values: dict[str, dict[str, Values]]) -> dict[str, Place]:
    return rank(suite, values, compare_suite(suite, values))[WHOLE]


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


def test_what_runs_decide_follows_from_the_spread_of_the_same_comparison() -> None:
    """Wide differences decide less than narrow ones of the same page; simulated again, four of five experiments find them."""
    narrow, wide = (tuple(width * value for value in (-2.0, -1.0, 0.0, 1.0, 2.0, 0.0)) for width in (0.01, 0.1))
    one, other = (find_decided(Difference(0.0, p=0.5, values=values), 1) for values in (narrow, wide))
    assert one is not None and other == pytest.approx(10 * one)
    draws = np.random.default_rng(3).normal(one, np.std(narrow, ddof=1), (4000, len(narrow)))
    assert np.mean(stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.02)
    assert find_decided(Difference(0.0, p=0.5, values=narrow), 20) > one  # type: ignore[operator]
    assert (
        find_decided(Difference(0.0, values=narrow[:4]), 1)
        is find_decided(Difference(0.0, values=(0.1,) * 6), 1)
        is None
    )


@pytest.mark.parametrize(("suite", "seeds"), [(AGENTS, 1), (make_suite(), 8)], ids=["agents", "methods"])
def test_entries_share_a_band_if_and_only_if_their_difference_is_not_decided(suite: Suite, seeds: int) -> None:
    values = draw({"best": 0.9, "near": 0.89, "middle": 0.6, "low": 0.3, "lower": 0.29}, seeds, 0.01)
    found = compare_suite(suite, values)
    places = rank(suite, values, found)[WHOLE]
    order = sorted(places, key=lambda name: places[name].order)
    assert set(order[:2]) == {"best", "near"} and order[2] == "middle" and set(order[3:]) == {"low", "lower"}
    assert [places[name].rank for name in order] == [1, 2, 3, 4, 5]
    assert [places[name].bands for name in order] == [(1,), (1,), (2,), (3,), (3,)]
    assert len(found) == 10 and not any(one.planned for one in found)
    for one in found:
        shared = set(places[one.first].bands) & set(places[one.second].bands)
        assert one.scenario == WHOLE and bool(shared) != one.difference.is_decided
    by_scenario = rank(suite, values, found)["a"]
    assert {place.bands for place in by_scenario.values()} == {()} and {
        place.rank for place in by_scenario.values()
    } == {None}


def test_too_few_runs_have_no_ranks() -> None:
    """Their bands are as wide as runs vary, and single runs are one band."""
    places = find_places(make_suite(), draw({"best": 0.9, "near": 0.89, "low": 0.3}, 3, 0.01))
    assert {place.rank for place in places.values()} == {None}
    assert (places["best"].bands, places["near"].bands, places["low"].bands) == ((1,), (1,), (2,))
    single = find_places(make_suite(), draw({"best": 0.9, "low": 0.3}))
    assert {place.bands for place in single.values()} == {(1,)}


@given(
    st.integers(1, 7).flatmap(
        lambda k: st.tuples(st.just(k), st.sets(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1))))
    )
)
def test_bands_are_the_largest_sets_of_which_no_two_are_apart(drawn: tuple[int, set[tuple[int, int]]]) -> None:
    names = [f"entry-{number}" for number in range(drawn[0])]
    apart = {frozenset((names[one], names[other])) for one, other in drawn[1] if one != other}
    bands = find_bands(names, apart)
    members: dict[int, set[str]] = {}
    for name in names:
        for band in bands[name]:
            members.setdefault(band, set()).add(name)
    assert sorted(members) == list(range(1, len(members) + 1)) and names[0] in members[1]
    for size in range(1, len(names) + 1):
        for chosen in map(set, itertools.combinations(names, size)):
            together = not any(pair <= chosen for pair in apart)
            largest = together and not any(
                all({name, one} not in apart for one in chosen) for name in names if name not in chosen
            )
            assert (chosen in members.values()) == largest


def test_equal_entries_share_a_band_nineteen_times_in_twenty() -> None:
    """All of eight entries with two runs each, without a test for any of them."""
    draws = np.random.default_rng(3).normal(0.6, 0.05, (500, 8, 2))
    apart = [np.ptp(runs.mean(axis=1)) > find_reach(runs.tolist()) for runs in draws]
    assert 0.01 <= np.mean(apart) <= 0.065


def test_equal_entries_share_a_band_in_the_order_of_their_names() -> None:
    one = draw({"x": 0.5})["x"]
    places = find_places(AGENTS, {"b": one, "a": one, "c": one})
    assert [places[name].rank for name in "abc"] == [1, 2, 3] and {place.bands for place in places.values()} == {(1,)}
    assert find_places(AGENTS, {}) == {}


def test_less_can_be_better() -> None:
    suite = AGENTS.model_copy(update={"rank_by": "turns"})
    assert find_places(suite, draw({"high": 0.9, "low": 0.1}))["low"].rank == 1


def test_a_pair_is_compared_where_both_have_played() -> None:
    """Runs are the unit: two of them show nothing, eight do."""
    for seeds, finding in ((2, "too few runs"), (8, "above")):
        values = draw({"learns": 0.9, "stays": 0.5}, seeds, 0.03)
        named = {name: {"uniform": one["a"]} for name, one in values.items()}
        (found,) = compare_suite(METHODS_SUITE, named)
        assert (found.first, found.second, found.scenario) == ("learns", "stays", "uniform")
        assert len(found.difference.values) == seeds and read_difference(found.difference) == finding


def test_all_comparisons_of_a_page_are_one_family() -> None:
    """Planned ones in scenarios and in the mean, and every other pair in the mean, with Holm's correction over all."""
    suite = make_suite(pairs=[["best", "middle"], ["low", "middle"]])
    values = draw({"best": 0.62, "near": 0.6, "middle": 0.5, "low": 0.3}, 8, 0.05)
    found = compare_suite(suite, values)
    planned = [(one.first, one.second, one.scenario) for one in found if one.planned]
    assert planned == suite.comparisons == [(*pair, name) for pair in suite.pairs for name in ("a", "b", WHOLE)]
    rest = {(one.first, one.second) for one in found if not one.planned}
    assert rest == {("best", "near"), ("best", "low"), ("low", "near"), ("middle", "near")}
    assert suite.model_copy(update={"baselines": dict.fromkeys(values)}).family == len(found) == 10
    p = [one.difference.p for one in found]
    order = np.argsort(p)
    expected = np.maximum.accumulate([min(1.0, (10 - place) * p[index]) for place, index in enumerate(order)])
    assert [found[index].difference.adjusted for index in order] == pytest.approx(expected.tolist())


def test_a_share_differs_in_points_and_in_log_odds() -> None:
    draws = np.random.default_rng(4)
    runs = {name: draws.uniform(0.05, 0.6, (8, 1)) for name in ("x", "y")}
    suite = Suite.load({**METHODS, "scenarios": {"a": {}}})
    (found,) = compare_suite(suite, {name: {"a": values} for name, values in runs.items()})
    points, odds = (
        stats.ttest_rel(change(runs["x"][:, 0]), change(runs["y"][:, 0]))
        for change in (np.array, np.vectorize(compute_log_odds))
    )
    same_side = points.statistic * odds.statistic > 0
    assert found.scenario == "a" and found.difference.p == pytest.approx(
        max(points.pvalue, odds.pvalue) if same_side else 1.0
    )
    assert found.difference.ends == pytest.approx(tuple(points.confidence_interval(0.95)))


def test_a_gain_is_a_difference_of_differences() -> None:
    """Of two pairs of entries, and of one pair in two scenarios."""
    gains = [
        {"of": ["swap-20", "plain-20"], "over": ["swap-5", "plain-5"]},
        {"of": ["swap-20", "plain-20"], "scenario": "b", "over_scenario": "a"},
    ]
    suite = make_suite(gains=gains)
    draws = np.random.default_rng(5)
    shares = {"swap-20": (0.5, 0.9), "plain-20": (0.5, 0.5), "swap-5": (0.6, 0.5), "plain-5": (0.6, 0.5)}
    values = {
        name: {scenario: draws.normal(mean, 0.02, (8, 1)) for scenario, mean in zip(SCENARIOS, means, strict=True)}
        for name, means in shares.items()
    }
    by_pair, by_scenario = (one for one in compare_suite(suite, values) if one.gain is not None)
    runs = {name: np.mean(list(tables.values()), axis=0)[:, 0] for name, tables in values.items()}
    expected = runs["swap-20"] - runs["plain-20"] - runs["swap-5"] + runs["plain-5"]
    assert by_pair.difference.values == pytest.approx(expected.tolist())
    low, high = stats.ttest_1samp(expected, 0).confidence_interval(0.95)
    assert by_pair.difference.ends == pytest.approx((low, high)) and read_difference(by_pair.difference) == "above"
    assert (by_scenario.scenario, by_scenario.difference.mean) == ("b", pytest.approx(0.4, abs=0.03))
    assert len(compare_suite(suite, {name: tables for name, tables in values.items() if name != "swap-5"})) == 3 + 1
    for wrong, problem in (
        ({"of": ["x", "y"]}, "compared with themselves"),
        ({**gains[1], "scenario": "c"}, "'c' is no scenario"),
    ):
        with pytest.raises(OptionError, match=problem):
            make_suite(gains=[wrong])
    with pytest.raises(OptionError, match="gains"):
        Suite.load({**AGENTS.model_dump(exclude_unset=True), "gains": gains[:1]})


def test_a_difference_is_read_only_as_far_as_it_goes() -> None:
    def read(mean: float, p: float | None, p_unequal: float | None) -> str:
        return read_difference(Difference(mean, p=p, adjusted=p, adjusted_unequal=p_unequal), "0.04")

    assert read(0.2, 0.001, 1.0) == "above" and read(-0.2, 0.001, 1.0) == "below"
    assert read(0.0, 1.0, 0.01) == "equal within 0.04" and read(0.1, 0.9, 0.9) == "not decided"
    assert read(0.02, 0.001, 0.01) == "above, equal within 0.04" and read(0.1, None, None) == "too few runs"


def test_what_is_not_decided_names_the_runs_that_it_takes() -> None:
    """For the ends of the interval of the standard deviation: `find_decidable` is below 0.05 from that number on, not before."""
    values = (0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.0)
    vague = Difference(0.0, p=1.0, adjusted=1.0, adjusted_unequal=1.0, values=values)
    shown = read_planned(vague, 0.05, 6, "5 points")
    fewest, most = (int(word.replace(",", "")) for word in re.findall("[0-9,]+", shown)[:2])
    assert shown == f"not decided: takes {fewest:,} to {most:,} runs for 5 points"
    squares = 6 * np.var(values, ddof=1)
    for runs, tail in ((fewest, 0.975), (most, 0.025)):
        spread = float(np.sqrt(squares / stats.chi2.ppf(tail, 6)))
        assert find_decidable(spread, runs, 6) <= 0.05 < find_decidable(spread, runs - 1, 6)
    assert read_planned(replace(vague, values=()), 0.05, 6, "5 points") == "not decided"
    assert read_planned(vague, 0.9, 6, "90 points") == "not decided, though 5 runs would find 90 points"


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
    found = compare_suite(suite, values)
    outcomes = [find_outcome(one, found)["uniform"] for one in suite.expected if not isinstance(one, str)]
    assert outcomes == ["as expected", "otherwise", "as expected", "otherwise", "not decided"]
    larger = suite.expected[0].model_copy(update={"by": 0.4}) if not isinstance(suite.expected[0], str) else None
    assert larger is not None and find_outcome(larger, found)["uniform"] == "so, but smaller"
    told = read_planned(found[2].difference, suite.smallest_difference, len(suite.comparisons), "5 points")
    assert re.fullmatch("not decided: takes [0-9,]+ to [0-9,]+ runs for 5 points", told), told
    assert str(suite.expected[0]) == "better is above base in uniform"
