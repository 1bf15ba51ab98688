"""Intervals and tests against scipy, statsmodels and evalstats, against exact tests, and against simulated experiments."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedagentgym.base.errors import OptionError
from fedagentgym.base.statistics import (
    LEVEL,
    MIN_REPLICATES,
    Difference,
    Values,
    bound_spread,
    compare_replicates,
    compare_tasks,
    compute_log_odds,
    correct,
    count_replicates,
    estimate_replicates,
    estimate_tasks,
    find_decidable,
    find_half_width,
    pool_spread,
)

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=6)
shares = st.floats(0, 1).map(lambda value: round(value, 3))


def estimate(*strata: Values, bounded: bool = True) -> tuple[float, float, float]:
    mean, low, high = estimate_tasks([values[:, None] for values in strata], [bounded])
    return float(mean[0]), float(low[0]), float(high[0])


# ---- tasks ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=50), st.integers(1, 3))
def test_the_interval_of_a_share_is_wilsons(solved: list[bool], copies: int) -> None:
    """Also of several strata that are alike, which are one with more tasks."""
    values = np.array(solved, float)
    oracle = stats.binomtest(copies * sum(solved), copies * len(solved)).proportion_ci(method="wilson")
    mean, low, high = estimate(*[values] * copies)
    assert (low, high) == pytest.approx((oracle.low, oracle.high), abs=1e-9) and low <= mean <= high


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20))
def test_other_measures_have_students_interval(drawn: list[float]) -> None:
    values = np.array(drawn)
    assume(values.std() > 1e-6)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert estimate(values, bounded=False)[1:] == pytest.approx((low, high))


def test_repeats_of_a_task_are_no_tasks() -> None:
    """Tasks that are always or never solved have the interval of so many tasks; others have a narrower one with repeats."""
    draws = np.random.default_rng(0)
    fixed = (np.arange(40) % 2).astype(float)
    low, high = estimate(fixed)[1:]
    drawn = draws.binomial(8, 0.5, 40) / 8
    again = estimate(drawn)[1:]
    assert high - low == pytest.approx(0.30, abs=0.01) and (again[1] - again[0]) < 0.6 * (high - low)
    assert estimate(np.array([7.0]), bounded=False) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(("tasks", "repeats", "spread", "strata"), [(20, 1, 1.0, 1), (20, 4, 1.0, 1), (50, 2, 0.1, 4)])
def test_intervals_of_shares_cover_as_often_as_they_say(tasks: int, repeats: int, spread: float, strata: int) -> None:
    draws = np.random.default_rng(1)
    inside = 0
    for _ in range(600):
        means = draws.beta(spread, spread, (strata, tasks))
        _, low, high = estimate(*(draws.binomial(repeats, means) / repeats))
        inside += low <= 0.5 <= high
    assert 0.93 <= inside / 600 <= 0.99


@pytest.mark.parametrize(("tasks", "share", "strata"), [(8, 0.5, 2), (50, 0.9, 4), (300, 0.3, 1)])
def test_equal_agents_differ_no_more_often_than_the_level(tasks: int, share: float, strata: int) -> None:
    drawn = (np.random.default_rng(2).random((800, 2, strata, tasks)) < share).astype(float)
    found = [compare_tasks(list(one - other), bounded=True) for one, other in drawn]
    assert np.mean([one.p is not None and one.p < LEVEL for one in found]) <= 0.06


def test_a_few_tasks_decide_nothing() -> None:
    """If all of four tasks differ, an exact test of signs has p = 0.125."""
    few = compare_tasks([np.ones(4)], bounded=True)
    assert (
        few.mean == 1
        and few.p is not None
        and 0.05 < few.p < 0.2
        and few.low is not None
        and few.low < 0 < 1 == few.high
    )
    many = compare_tasks([np.ones(40)], bounded=True)
    assert many.p is not None and many.p < 1e-9 and many.low is not None and many.low > 0.8
    assert compare_tasks([np.zeros(40)], bounded=True, margin=0.2).p == 1
    assert compare_tasks([np.array([3.0])], bounded=False) == Difference(3.0)


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=12))
def test_unbounded_differences_have_a_paired_t_test(drawn: list[float]) -> None:
    values = np.array(drawn)
    assume(values.std() > 1e-6)
    assert compare_tasks([values], bounded=False).p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=1e-9)


# ---- replicates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 8, 16])
@pytest.mark.parametrize("spread", [0.03, 0.1, 0.2])
def test_equal_methods_differ_as_often_as_the_level_says(count: int, spread: float) -> None:
    """Two methods with the same distribution of runs: success varies from run to run, and by the 400 tasks that are drawn."""
    draws = np.random.default_rng([count, round(100 * spread)])
    means = np.clip(draws.normal(0.6, spread, (3000, 2, count)), 0, 1)
    reached = draws.binomial(400, means) / 400
    p = [compare_replicates(one).p for one in (reached[:, 0] - reached[:, 1]).tolist()]
    assert 0.035 <= np.mean([one is not None and one < LEVEL for one in p]) <= 0.065


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=9))
def test_a_comparison_of_runs_is_scipys_paired_test(pairs: list[tuple[float, float]]) -> None:
    first, second = (np.array(values) for values in zip(*pairs, strict=True))
    values = (first - second).tolist()
    found, alone = compare_replicates(values, margin=0.1), estimate_replicates(first.tolist())
    assert found.values == tuple(values) and alone.mean == pytest.approx(first.mean())
    if len(pairs) < MIN_REPLICATES:
        assert found.ends is None and found.p is None and found.p_unequal is None and alone.low is None
        return
    if np.std(values) < 1e-9 or np.std(first) < 1e-9:
        return
    oracle = stats.ttest_rel(first, second)
    assert found.p == pytest.approx(oracle.pvalue, abs=1e-9)
    assert found.ends == pytest.approx(tuple(oracle.confidence_interval(0.95)))
    below = stats.ttest_1samp(values, -0.1, alternative="greater").pvalue
    above = stats.ttest_1samp(values, 0.1, alternative="less").pvalue
    assert found.p_unequal == pytest.approx(max(below, above), abs=1e-9)
    low, _ = stats.ttest_1samp(first, 0).confidence_interval(0.95)
    assert alone.low == pytest.approx(low) == alone.mean - find_half_width(first.tolist())


@given(st.lists(st.tuples(shares, shares), min_size=MIN_REPLICATES, max_size=9))
def test_shares_differ_if_they_do_on_both_scales(pairs: list[tuple[float, float]]) -> None:
    odds = [[compute_log_odds(share) for share in values] for values in zip(*pairs, strict=True)]
    assert odds[0] == pytest.approx([np.log((one + 0.005) / (1.005 - one)) for one, _ in pairs])
    values, log_odds = [one - other for one, other in pairs], np.subtract(*odds).tolist()
    found, alone = compare_replicates(values, 0.1, log_odds), compare_replicates(values, 0.1)
    assert (found.ends, found.p_unequal, found.values) == (alone.ends, alone.p_unequal, alone.values)
    assert found.p is not None and alone.p is not None and found.p >= alone.p
    if np.std(values) > 1e-6 and np.std(log_odds) > 1e-6 and abs(np.mean(values)) > 1e-9:
        both = [stats.ttest_1samp(each, 0) for each in (values, log_odds)]
        same_side = both[0].statistic * both[1].statistic >= 0
        assert found.p == pytest.approx(max(one.pvalue for one in both) if same_side else 1.0, abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20))
def test_a_standard_deviation_has_an_interval(values: list[float]) -> None:
    """That of the chi-squared distribution; nineteen in twenty contain the true one."""
    squares = (len(values) - 1) * np.var(values, ddof=1)
    oracle = [np.sqrt(squares / stats.chi2.ppf(tail, len(values) - 1)) for tail in (0.975, 0.025)]
    assert bound_spread(values) == pytest.approx(tuple(oracle))


def test_runs_that_do_not_vary() -> None:
    same, apart = compare_replicates([0.0] * 5, margin=0.04), compare_replicates([0.25] * 5, margin=0.04)
    assert (same.p, same.p_unequal, same.ends) == (1, 0, (0, 0)) and (apart.p, apart.p_unequal) == (0, 1)
    assert find_half_width([0.3]) == np.inf


@pytest.mark.parametrize(
    ("spread", "runs"), [(0.047, 13), (0.052, 16), (0.062, 21), (0.108, 60), (0.134, 91), (0.209, 217)]
)
def test_a_difference_of_four_points_takes_as_many_runs(spread: float, runs: int) -> None:
    """Those of an independent calculation, without a correction; with one of sixteen comparisons more."""
    assert count_replicates(spread, 0.04) == runs < count_replicates(spread, 0.04, 16)
    assert find_decidable(spread, runs) <= 0.04 < find_decidable(spread, runs - 1)


@pytest.mark.parametrize(("count", "comparisons"), [(5, 1), (8, 1), (12, 16)])
def test_what_is_decidable_is_found_in_four_of_five_experiments(count: int, comparisons: int) -> None:
    difference = find_decidable(0.1, count, comparisons)
    draws = np.random.default_rng(count).normal(difference, 0.1, (4000, count))
    found = [compare_replicates(values).p for values in draws.tolist()]
    assert np.mean([p is not None and p < LEVEL / comparisons for p in found]) == pytest.approx(0.8, abs=0.02)
    assert find_decidable(0.1, MIN_REPLICATES - 1) == np.inf
    with pytest.raises(OptionError, match="above 0"):
        count_replicates(0.1, 0)


def test_rows_that_vary_alike_have_one_spread() -> None:
    rows = np.random.default_rng(0).normal(0, 0.3, (400, 3)) + np.arange(400)[:, None]
    assert pool_spread(rows.tolist()) == pytest.approx(0.3, rel=0.05)
    assert pool_spread([[1.0, 3.0], [5.0]]) == pytest.approx(np.std([1, 3], ddof=1)) and pool_spread([[1.0]]) is None


# ---- corrections ------------------------------------------------------------------------------------------------------


@given(probabilities)
def test_holm_is_closed_testing_with_bonferroni(p: list[float]) -> None:
    """Rejected is what every set of hypotheses around it rejects at its smallest p times its size."""
    expected = []
    for index in range(len(p)):
        sets = [
            chosen
            for size in range(1, len(p) + 1)
            for chosen in itertools.combinations(range(len(p)), size)
            if index in chosen
        ]
        expected.append(max(min(1.0, len(chosen) * min(p[one] for one in chosen)) for chosen in sets))
    found = correct([Difference(0.0, p=one) for one in p])
    assert [one.adjusted for one in found] == pytest.approx(expected)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=4))
def test_of_two_tests_of_a_comparison_one_hypothesis_is_true_at_most(drawn: list[tuple[float, float]]) -> None:
    """Closed testing over the sets that can be true: none has both hypotheses of a comparison. The step-down method rejects no
    more, and what it rejects first is the same."""
    found = correct([Difference(0.0, p=p, p_unequal=unequal) for p, unequal in drawn])
    for place, pair in enumerate(drawn):
        for kind, adjusted in enumerate((found[place].adjusted, found[place].adjusted_unequal)):
            worst = 0.0
            for others in itertools.product((None, 0, 1), repeat=len(drawn)):
                if others[place] == kind:
                    chosen = [drawn[one][which] for one, which in enumerate(others) if which is not None]
                    worst = max(worst, min(1.0, len(chosen) * min(chosen)))
            assert adjusted is not None and adjusted >= worst - 1e-12 and pair[kind] <= worst + 1e-12


@given(st.lists(st.tuples(st.floats(0, 1), st.one_of(st.none(), st.floats(0, 1))), min_size=1, max_size=5))
def test_differences_and_equality_are_corrected_together(drawn: list[tuple[float, float | None]]) -> None:
    found = correct([Difference(0.0, p=p, p_unequal=unequal) for p, unequal in drawn])
    assert correct([Difference(0.0)]) == [Difference(0.0)]
    both = [(one.p, one.adjusted) for one in found] + [(one.p_unequal, one.adjusted_unequal) for one in found]
    tests = sorted((p, adjusted) for p, adjusted in both if p is not None and adjusted is not None)
    assert len(tests) == sum(p is not None for p, _ in both)
    smallest, corrected = tests[0]
    assert corrected == pytest.approx(min(1, len(drawn) * smallest)), "as many can be true as there are comparisons"
    assert [adjusted for _, adjusted in tests] == sorted(adjusted for _, adjusted in tests)


def test_one_error_in_twenty_pages() -> None:
    """Of eight comparisons on a page, four of which are equal and four of which differ by the margin, some test errs on at most
    one page in twenty."""
    draws, margin = np.random.default_rng(5), 0.05
    wrong = 0
    for _ in range(600):
        centres = [0.0] * 4 + [margin] * 4
        rows = [compare_replicates(draws.normal(centre, 0.05, 8).tolist(), margin) for centre in centres]
        found = correct(rows)
        wrong += any(one.is_decided for one in found[:4]) or any(one.is_equal for one in found[4:])
    assert wrong / 600 <= 0.065


# ---- other libraries --------------------------------------------------------------------------------------------------


@given(probabilities)
@settings(deadline=None, max_examples=20)
def test_holm_is_that_of_statsmodels(p: list[float]) -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    found = [one.adjusted for one in correct([Difference(0.0, p=one) for one in p])]
    with patch("gc.collect"):  # theirs collects garbage in every call
        assert found == pytest.approx(multitest.multipletests(p, method="holm")[1], abs=1e-12)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.floats(0.5, 0.999))
def test_the_interval_of_a_share_is_that_of_statsmodels_and_evalstats(solved: list[bool], confidence: float) -> None:
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    resampling = pytest.importorskip("evalstats.core.resampling")
    _, low, high = estimate_tasks([np.array(solved, float)[:, None]], [True], confidence)
    oracle = proportion.proportion_confint(sum(solved), len(solved), 1 - confidence, method="wilson")
    again = resampling.wilson_ci(sum(solved), len(solved), 1 - confidence)
    for theirs in (oracle, again):
        assert (low[0], high[0]) == pytest.approx(theirs, abs=1e-12)


@given(st.lists(st.tuples(shares, shares), min_size=MIN_REPLICATES, max_size=12), st.floats(0.01, 0.5))
def test_equality_within_a_margin_is_that_of_statsmodels(pairs: list[tuple[float, float]], margin: float) -> None:
    """Two one-sided paired tests, and the difference itself beside a paired test of means."""
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    first, second = (np.array(values) for values in zip(*pairs, strict=True))
    assume(np.std(first - second) > 1e-6)
    found = compare_replicates((first - second).tolist(), margin)
    assert found.p_unequal == pytest.approx(weightstats.ttost_paired(first, second, -margin, margin)[0], abs=1e-10)
    described = weightstats.DescrStatsW(first - second)
    assert found.p == pytest.approx(described.ttest_mean(0)[1], abs=1e-10)
    assert found.ends == pytest.approx(described.tconfint_mean(0.05), abs=1e-10)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=2, max_size=60))
def test_paired_differences_of_shares_have_bonett_and_prices_interval(drawn: list[float]) -> None:
    """evalstats has it with a normal quantile; ours is wider by the ratio of Student's to it, and has the same centre."""
    resampling = pytest.importorskip("evalstats.core.resampling")
    values, level = np.array(drawn), 2 * stats.norm.sf(stats.t.ppf(0.975, len(drawn) + 1))
    oracle = resampling.bonett_price_paired_ci_from_diffs(values, level)
    found = compare_tasks([values], bounded=True)
    assert found.ends == pytest.approx(oracle, abs=1e-9)


@pytest.mark.parametrize("count", [5, 8, 12, 40])
@pytest.mark.parametrize("level", [0.05, 0.05 / 16])
def test_power_is_that_of_statsmodels(count: int, level: float) -> None:
    power = pytest.importorskip("statsmodels.stats.power").TTestPower()
    found = find_decidable(1.0, count, round(LEVEL / level))
    # both sides are counted there, of which the wrong one is found next to never
    assert power.power(found, count, level) == pytest.approx(0.8, abs=1e-3)
