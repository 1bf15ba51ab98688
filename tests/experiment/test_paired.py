"""Paired differences against scipy, Holm's correction against closed testing, and areas of curves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.tables import Row, compare_rows
from fedagentgym.base.errors import OptionError
from fedagentgym.experiment.curves import Point, compute_area, find_round_reaching
from fedagentgym.experiment.paired import PairedDifference, compute_p, correct_holm

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=6)
success = st.floats(0, 1).map(lambda value: round(value, 3))


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
    assert correct_holm(p) == pytest.approx(expected)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(OptionError, match="between 0 and 1"):
        correct_holm([0.1, 1.5])


@given(st.lists(st.tuples(success, success), min_size=2, max_size=9))
@settings(deadline=None)
def test_a_comparison_is_scipys_paired_test(pairs: list[tuple[float, float]]) -> None:
    first, second = (tuple(values) for values in zip(*pairs, strict=True))
    rows = [Row("a", {"success": first}, 0, 0), Row("b", {"success": second}, 0, 0)]
    (found,) = compare_rows(rows, [("a", "b")], "success")
    assert found.values == tuple(x - y for x, y in pairs) and found.corrected == found.p
    if np.std(found.values) < 1e-9:
        return
    oracle = stats.ttest_rel(first, second)
    assert found.p == pytest.approx(oracle.pvalue, abs=1e-9)
    for confidence in (0.95, 0.9):
        low, high = oracle.confidence_interval(confidence)
        width = found.half_width(confidence)
        assert (found.mean - width, found.mean + width) == pytest.approx((low, high))
    below = stats.ttest_1samp(found.values, -0.1, alternative="greater").pvalue
    above = stats.ttest_1samp(found.values, 0.1, alternative="less").pvalue
    assert found.is_within(0.1) == (max(below, above) <= 0.05) or abs(max(below, above) - 0.05) < 1e-9


def test_single_seeds_and_equal_differences_decide_nothing_and_everything() -> None:
    assert compute_p([0.3]) == 1.0 and math.isinf(PairedDifference("a", "b", (0.3,), 1.0, 1.0).half_width())
    assert not PairedDifference("a", "b", (0.0,), 1.0, 1.0).is_within(0.04)
    assert compute_p([0.25, 0.25]) == 0.0 and compute_p([0.0, 0.0, 0.0]) == 1.0


def test_pairs_are_corrected_together() -> None:
    rows = [
        Row("a", {"success": (0.5, 0.6, 0.7)}, 0, 0),
        Row("b", {"success": (0.4, 0.52, 0.59)}, 0, 0),
        Row("c", {"success": (0.5, 0.61, 0.68)}, 0, 0),
    ]
    one, other = compare_rows(rows, [("a", "b"), ("a", "c")], "success")
    assert one.p < other.p
    assert one.corrected == pytest.approx(2 * one.p) and other.corrected == pytest.approx(max(other.p, 2 * one.p))


def test_the_area_is_the_mean_over_episodes() -> None:
    curve = [Point(0, 0, 0, 0.2), Point(1, 100, 1, 0.4), Point(3, 400, 3, 0.8)]
    assert compute_area(curve) == pytest.approx((100 * 0.3 + 300 * 0.6) / 400)
    assert compute_area(curve[:1]) == 0.2
    assert find_round_reaching(curve, 0.4) == 1 and find_round_reaching(curve, 0.2) == 0
    assert math.isinf(find_round_reaching(curve, 0.9))
