"""Sizes: exact sum, exact bounds, the scaling loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import OptionError
from fedagentgym.partitions.assignment import (
    compute_total,
    round_to_sum,
    sample_beta_sizes,
    scale_to_sum,
)
from fedagentgym.partitions.samplers.coverage import Bounds, validate_bounds


@given(
    clients=st.integers(1, 60),
    low=st.integers(0, 50),
    width=st.integers(0, 200),
    mean=st.floats(0, 1),
    total=st.floats(0, 1),
    dispersion=st.floats(0.01, 1000),
    seed=st.integers(0, 3),
)
def test_sum_and_bounds_hold(
    clients: int, low: int, width: int, mean: float, total: float, dispersion: float, seed: int
) -> None:
    high = low + width
    places = clients * low + round(total * clients * width)
    sizes = sample_beta_sizes(seed, "test", clients, places, low, low + mean * width, high, dispersion)
    assert int(sizes.sum()) == (clients * low if not width else places)
    assert int(sizes.min()) >= low and int(sizes.max()) <= high


@given(sizes=st.lists(st.floats(0, 1e6), min_size=1, max_size=40), share=st.floats(0, 1))
def test_water_filling_keeps_sum_and_order(sizes: list[float], share: float) -> None:
    low, high = 3, 50
    total = round(len(sizes) * (low + share * (high - low)))
    given_sizes = np.array(sizes)
    filled = scale_to_sum(given_sizes, total, low, high)
    assert filled.sum() == pytest.approx(total, abs=1e-6)
    assert filled.min() >= low - 1e-9 and filled.max() <= high + 1e-9
    assert np.all(np.diff(filled[np.argsort(given_sizes, kind="stable")]) >= -1e-9)
    assert int(round_to_sum(filled, total, low, high).sum()) == total


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=12), share=st.floats(0, 1))
def test_one_factor_scales_all_sizes_inside_the_bounds(sizes: list[int], share: float) -> None:
    low, high = 3, 50
    total = round(len(sizes) * (low + share * (high - low)))
    filled = scale_to_sum(np.array(sizes, dtype=np.float64), total, low, high)
    factors = filled / np.array(sizes)
    inside = (filled > low + 1e-6) & (filled < high - 1e-6)
    if inside.any():
        factor = float(factors[inside].mean())
        assert np.allclose(filled, np.clip(factor * np.array(sizes), low, high), rtol=1e-6)
    else:
        assert factors[filled > low + 1e-6].max(initial=0.0) <= factors[filled < high - 1e-6].min(initial=np.inf) + 1e-6


def test_scaling_without_bounds_in_the_way_is_proportional() -> None:
    assert np.allclose(scale_to_sum(np.array([1.0, 2.0, 3.0]), 60, 0, 100), [10, 20, 30])


def test_scaling_that_hits_a_bound_gives_the_rest_to_the_others() -> None:
    assert np.allclose(scale_to_sum(np.array([1.0, 1.0, 8.0]), 100, 0, 60), [20, 20, 60])


def test_only_the_side_with_the_larger_violation_is_fixed() -> None:
    """Beyond one bound by 1 and beyond the other by a little more or less: fixing both would be no common factor."""
    below = scale_to_sum(np.array([15.0, 205.0, 510.0]), 73, 3, 50)
    assert np.allclose(below, [3, 205 * 70 / 715, 510 * 70 / 715])
    above = scale_to_sum(np.array([29.0, 201.0, 510.0]), 74, 3, 50)
    assert np.allclose(above, [29 * 24 / 230, 201 * 24 / 230, 50])


def test_largest_remainder() -> None:
    assert round_to_sum(np.array([1.5, 1.25, 1.25]), 4, 0, 5).tolist() == [2, 1, 1]
    assert round_to_sum(np.array([2.0, 1.75, 0.25]), 4, 0, 5).tolist() == [2, 2, 0]
    assert round_to_sum(np.array([2.0, 1.75, 1.25]), 6, 0, 2).tolist() == [2, 2, 2]


def test_sizes_that_sum_to_more_are_lowered_to_the_total() -> None:
    assert round_to_sum(np.array([3.0, 3.0, 3.0]), 7, 2, 3).tolist() == [2, 2, 3]
    assert round_to_sum(np.array([2.0, 2.75, 3.0]), 6, 2, 3).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("overlap", "items", "total"), [(1.1, 10, 11), (0.29, 100, 29), (1.56, 6410, 9999), (2.0, 7, 14)]
)
def test_places_of_an_overlap_are_exact(overlap: float, items: int, total: int) -> None:
    assert compute_total(5, 3.0, overlap, items) == total


def test_places_of_a_mean_lose_nothing() -> None:
    """floor(r * N) with r = T / N in floating point is one short now and then; in integers never."""
    for clients in range(1, 200):
        assert compute_total(clients, 100.0, None, 6410) == clients * 100
    short = [t for t in range(1, 2000) if int((t / 6410) * 6410) != t]
    assert short


def test_infeasible_total_names_its_numbers() -> None:
    with pytest.raises(OptionError, match=r"9,000 tasks .* 10 clients with 20 to 300 .* between 200 and 3,000"):
        validate_bounds(Bounds(9000, 20, 100, 300), items=1000, clients=10, what="tasks")
