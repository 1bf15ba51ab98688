"""The authors' published sampling, against what was measured of it: sizes, piles at the bounds, one task short, equal clients."""

from __future__ import annotations

import numpy as np
import pytest

from fedagentgym.partitions import compat
from fedagentgym.partitions.division import make_sampler, sample_clients
from fedagentgym.partitions.statistics import compute_statistics, count_labels
from tests.partitions.conftest import make_table

WEBSHOP, ALFWORLD = 6410, 3553


def test_windows_share_only_with_neighbours() -> None:
    drawn = compat.assign_windows(WEBSHOP, 100, 100)
    assert set(drawn.sizes.tolist()) == {100}
    assert drawn.items.size / WEBSHOP == pytest.approx(1.56, abs=0.005)
    assert len(np.intersect1d(drawn[50], drawn[51])) == 36
    assert drawn[21].tolist() == list(range(21 * 64 - 18, 22 * 64 + 18))
    assert drawn[0].tolist() == list(range(100)) and drawn[99].tolist() == list(range(6400 - 90, 6410))


@pytest.mark.parametrize(
    ("xi", "least", "most", "spread", "full"), [(1.0, 123, 1000, 341, 17), (256.0, 426, 587, 28, 0)]
)
def test_published_coverage_sizes(xi: float, least: int, most: int, spread: int, full: int) -> None:
    sizes = compat.assign_by_coverage(WEBSHOP, 100, 100, 500, 1000, xi).sizes
    assert (int(sizes.min()), float(sizes.mean()), int(sizes.max())) == (least, 500.0, most)
    assert round(float(sizes.std())) == spread and int((sizes == 1000).sum()) == full


def test_published_coverage_ends_one_short_on_alfworld() -> None:
    drawn = compat.assign_by_coverage(ALFWORLD, 100, 100, 500, 1000, 1.0)
    assert drawn.items.size == 49_999
    webshop = compat.assign_by_coverage(WEBSHOP, 100, 100, 500, 1000, 1.0)
    assert webshop.items.size == 50_000 and set(webshop.count_copies(WEBSHOP).tolist()) == {7, 8}


@pytest.mark.parametrize(
    ("items", "solved", "spread", "mean"), [(WEBSHOP, 1780, 28.0, 59.4), (ALFWORLD, 2112, 18.5, 71.0)]
)
def test_published_hardness_misses_its_target(items: int, solved: int, spread: float, mean: float) -> None:
    """Its quotas have mean 50 and a spread of 39; what clients get is something else."""
    labels = np.zeros(items, dtype=np.int64)
    labels[np.random.default_rng(0).choice(items, solved, replace=False)] = 1
    drawn = compat.assign_by_hardness(np.flatnonzero(labels), np.flatnonzero(labels == 0), 100, 100, 1.0)
    counts = count_labels(drawn, labels, 2)[:, 1]
    assert counts.std() == pytest.approx(spread, abs=2.5) and counts.mean() == pytest.approx(mean, abs=2.0)


@pytest.mark.parametrize(("xi", "different"), [(1.0, 48), (256.0, 16)])
def test_published_hardness_gives_equal_clients(xi: float, different: int) -> None:
    drawn = compat.assign_by_hardness(np.arange(0, 1780), np.arange(1780, WEBSHOP), 100, 100, xi)
    assert len({tuple(client.tolist()) for client in drawn}) == different


@pytest.mark.parametrize(("omega", "low", "high"), [(0.01, 0.05, 0.1), (0.1, 0.2, 0.3), (0.9, 0.6, 0.8)])
def test_published_preference_distances(omega: float, low: float, high: float) -> None:
    """Distances to the mixture that is left after the cut category, as the published code measures them."""
    table = make_table(WEBSHOP)
    drawn = sample_clients(
        make_sampler("preference", {"omega": omega, "tasks_per_client": 100, "compat": "fedagent"}), table, 100, 0
    )
    left = table.counts.astype(float)
    left[table.names.index("fashion")] *= 0.2
    shares = compute_statistics(drawn, table, "preference").shares
    distance = np.abs(shares - left / left.sum()).sum(axis=1).mean() / 2
    assert low < distance < high and set(drawn.sizes.tolist()) == {100} and not drawn.has_repeats()


def test_uniform_takes_the_published_windows() -> None:
    drawn = sample_clients(
        make_sampler("uniform", {"tasks_per_client": 30, "compat": "fedagent"}), make_table(300), 20, 9
    )
    assert drawn.same_as(compat.assign_windows(300, 20, 30))
