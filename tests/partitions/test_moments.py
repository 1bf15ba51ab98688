"""Empirical moments over 2,000 clients against the analytic ones; dispersion follows its knob; axes do not move each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.division import make_sampler, sample_clients
from fedagentgym.partitions.statistics import Statistics, compare_with_chance, compute_statistics
from fedagentgym.partitions.table import TaskTable
from tests.partitions.conftest import make_table

CLIENTS, TASKS = 2000, 50
TABLE = make_table(40_000)
SHARES = TABLE.counts / len(TABLE)


def measured(name: str, clients: int = CLIENTS, table: TaskTable = TABLE, **parameters: Any) -> Statistics:
    return compute_statistics(sample_clients(make_sampler(name, parameters), table, clients, 3), table, name)


def logit_normal_moments(omega: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and second moment of q = softmax(log p + omega z), by a large simulation with numpy's own generator."""
    rng = np.random.default_rng(0)
    weights = np.exp(np.log(SHARES) + omega * rng.normal(size=(400_000, SHARES.size)))
    mixtures = weights / weights.sum(axis=1, keepdims=True)
    return mixtures.mean(axis=0), (mixtures**2).mean(axis=0)


@pytest.mark.parametrize("omega", [0.1, 0.9])
def test_preference_has_the_moments_of_the_logistic_normal(omega: float) -> None:
    statistics = measured("preference", omega=omega, tasks_per_client=TASKS)
    mean, second = logit_normal_moments(omega)
    variance = second - mean**2 + (mean - second) / TASKS
    _assert_moments(statistics.shares, mean, variance)


@pytest.mark.parametrize("omega", [0.05, 0.5])
def test_preference_dirichlet_has_the_global_mean_and_linear_variance(omega: float) -> None:
    statistics = measured("preference_dirichlet", omega=omega, tasks_per_client=TASKS)
    spread = omega * SHARES * (1 - SHARES)
    variance = spread + (SHARES - SHARES**2 - spread) / TASKS
    _assert_moments(statistics.shares, SHARES, variance)
    total = omega * (1 - (SHARES**2).sum())
    noise = (1 - (SHARES**2).sum() - total) / TASKS
    assert statistics.mixture_dispersion == pytest.approx(total + noise, rel=0.1)


def _assert_moments(shares: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> None:
    """Mean within 4.5 standard errors; variance within 4.5 of its own (by the fourth moment of the sample)."""
    assert np.all(np.abs(shares.mean(axis=0) - mean) < 4.5 * np.sqrt(variance / CLIENTS) + 1e-4)
    deviation = shares - shares.mean(axis=0)
    error = np.sqrt(((deviation**4).mean(axis=0) - (deviation**2).mean(axis=0) ** 2) / CLIENTS)
    assert np.all(np.abs((deviation**2).mean(axis=0) - variance) < 4.5 * error + 0.02 * variance)


@pytest.mark.parametrize(("xi", "tolerance"), [(1.0, 0.1), (256.0, 0.05)])
def test_coverage_has_the_standard_deviation_of_the_beta(xi: float, tolerance: float) -> None:
    """At xi 1 the sizes pile up at both bounds, and scaling to the exact sum moves them a little."""
    statistics = measured("coverage", xi=xi, mean_tasks=100, min_tasks=20, max_tasks=300)
    mu = 80 / 280
    assert statistics.sizes.mean() == 100
    assert statistics.sizes.std() == pytest.approx(280 * np.sqrt(mu * (1 - mu) / (xi + 1)), rel=tolerance)


@pytest.mark.parametrize(("xi", "tolerance"), [(1.0, 0.05), (256.0, 0.05)])
def test_hardness_has_the_standard_deviation_of_the_beta(xi: float, tolerance: float) -> None:
    statistics = measured("hardness", xi=xi, tasks_per_client=100)
    assert statistics.hardness_dispersion is not None
    assert statistics.hardness_dispersion == pytest.approx(0.5 / np.sqrt(xi + 1), rel=tolerance)


def test_classic_dirichlet_shares_follow_the_beta_marginal() -> None:
    """A client's share of a category is Beta(beta, (K - 1) beta): mean 1/K, variance (K - 1) / (K^2 (K beta + 1))."""
    clients, beta = 500, 0.5
    table = make_table(100_000, {"a": 0.5, "b": 0.5})
    statistics = measured("dirichlet", clients, table, beta=beta, min_tasks=0)
    shares = statistics.counts / statistics.counts.sum(axis=0)
    expected = (clients - 1) / clients**2 / (clients * beta + 1)
    assert np.allclose(shares.mean(axis=0), 1 / clients)
    assert np.all(np.abs(shares.var(axis=0) / expected - 1) < 0.4)


def test_dispersion_grows_with_omega() -> None:
    omegas = (0.0, 0.1, 0.3, 0.6, 0.9, 1.5)
    values = [measured("preference", omega=omega, tasks_per_client=TASKS).mixture_dispersion for omega in omegas]
    assert values == sorted(values)
    values = [
        measured("preference_dirichlet", omega=o, tasks_per_client=TASKS).mixture_dispersion
        for o in (0.01, 0.1, 0.5, 0.9)
    ]
    assert values == sorted(values)


def test_dispersion_falls_with_xi() -> None:
    sizes = [measured("coverage", 500, xi=xi, mean_tasks=50).size_dispersion for xi in (1, 4, 16, 64, 256)]
    hard = [measured("hardness", 500, xi=xi, tasks_per_client=50).hardness_dispersion for xi in (1, 4, 16, 64, 256)]
    assert sizes == sorted(sizes, reverse=True) and hard == sorted(hard, reverse=True)


@pytest.mark.parametrize(
    ("name", "parameters", "moved"),
    [
        ("preference", {"omega": 0.9, "tasks_per_client": TASKS}, "mixture"),
        ("coverage", {"xi": 1.0, "mean_tasks": TASKS}, "sizes"),
        ("hardness", {"xi": 1.0, "tasks_per_client": TASKS}, "hardness"),
        ("preference_coverage", {"omega": 0.9, "xi": 1.0, "mean_tasks": TASKS}, "mixture sizes"),
        ("uniform", {"tasks_per_client": TASKS}, ""),
    ],
)
def test_an_axis_moves_alone(name: str, parameters: dict[str, Any], moved: str) -> None:
    """Labels are independent of categories in this pool, so each axis can be compared with chance directly."""
    table = make_table(20_000)
    assert table.solved is not None
    drawn = sample_clients(make_sampler(name, parameters), table, 400, 7)
    nothing = np.zeros(len(table), dtype=np.int64)
    mixture = compare_with_chance(drawn, table.codes, nothing).z
    hardness = compare_with_chance(drawn, table.solved.astype(np.int64), nothing).z
    spread = int(np.ptp(drawn.sizes))
    assert (mixture > 10) if "mixture" in moved else (abs(mixture) < 4)
    assert (hardness > 10) if "hardness" in moved else (abs(hardness) < 4)
    assert (spread > 20) if "sizes" in moved else (spread == 0)


@settings(max_examples=15)
@given(
    omega=st.floats(0.3, 1.5),
    xi=st.sampled_from([1.0, 4.0, 16.0]),
    seed=st.integers(0, 10**6),
    tasks=st.integers(20, 60),
)
def test_axes_stay_apart_for_any_setting(omega: float, xi: float, seed: int, tasks: int) -> None:
    """Whatever the knob and the seed, the measures of the other two axes stay within sampling noise of chance."""
    table = make_table(6000)
    assert table.solved is not None
    solved, nothing = table.solved.astype(np.int64), np.zeros(len(table), dtype=np.int64)

    def drawn(name: str, **parameters: Any) -> Assignment:
        return sample_clients(make_sampler(name, parameters), table, 80, seed)

    likes = drawn("preference", omega=omega, tasks_per_client=tasks)
    knows = drawn("coverage", xi=xi, mean_tasks=tasks)
    solves = drawn("hardness", xi=xi, tasks_per_client=tasks)
    assert compare_with_chance(likes, solved, nothing).z < 6 and np.ptp(likes.sizes) == 0
    assert compare_with_chance(knows, solved, nothing).z < 6 and compare_with_chance(knows, table.codes, nothing).z < 6
    assert compare_with_chance(solves, table.codes, solved).z < 6 and np.ptp(solves.sizes) == 0


def test_hardness_leaves_the_mixture_alone_given_the_labels() -> None:
    """If easy tasks are of other categories, the mixture must follow the labels, and only the labels."""
    table = make_table(20_000, {"easy": 0.5, "hard": 0.3, "mid": 0.2})
    draws = np.random.default_rng(1).random(len(table))
    table = table.with_solved(draws < np.array([0.7, 0.2, 0.4])[table.codes])
    assert table.solved is not None
    drawn = sample_clients(make_sampler("hardness", {"xi": 1.0, "tasks_per_client": 100}), table, 400, 7)
    nothing = np.zeros(len(table), dtype=np.int64)
    assert compare_with_chance(drawn, table.codes, nothing).z > 10
    assert abs(compare_with_chance(drawn, table.codes, table.solved.astype(np.int64)).z) < 4
