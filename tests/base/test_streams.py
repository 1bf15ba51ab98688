"""Randomness: golden words, exact distributions, and independence of how a stream is read."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import GRID, derive, generator, on_grid, stream

GOLDEN_WORDS = [8981914998390474345, 2459211390830687735, 9419460242975552332]
GOLDEN_DICE = [4, 3, 2, 5, 2, 5, 4, 2, 0, 3]
GOLDEN_CHILD = 7956898081927446462


def test_golden_draws() -> None:
    draw = stream(7, "golden", 3)
    assert draw.raw(3).tolist() == GOLDEN_WORDS
    assert [draw.integers(6) for _ in range(10)] == GOLDEN_DICE
    assert derive(7, "golden") == GOLDEN_CHILD


def test_words_are_those_of_numpys_philox() -> None:
    key = int.from_bytes(hashlib.sha256(b"\x02\x00\x00\x00i5\x02\x00\x00\x00sa").digest()[:16], "little")
    assert stream(5, "a").raw(1000).tolist() == np.random.Philox(key=key).random_raw(1000).tolist()


@given(st.lists(st.integers(1, 40), max_size=12))
def test_words_do_not_depend_on_how_they_are_asked_for(pieces: list[int]) -> None:
    whole = stream(1, "pieces").raw(sum(pieces))
    draw = stream(1, "pieces")
    got = [
        word for piece in pieces for word in (draw.raw(piece) if piece % 2 else [draw._word() for _ in range(piece)])
    ]
    assert [int(word) for word in got] == whole.tolist()


@given(st.integers(1, 2**63), st.integers(0, 200))
def test_scalar_and_vector_integers_stay_below(high: int, size: int) -> None:
    draws = stream(0, "below", high).integers(high, size=size)
    assert draws.shape == (size,) and (draws >= 0).all() and (draws < high).all()
    assert 0 <= stream(0, "below", high).integers(high) < high


def test_type_and_position_in_a_path_matter() -> None:
    seeds = {derive(0, 1), derive(0, "1"), derive(1, 0), derive(0), derive(0, 1, 2), derive(0, 12), derive(0, "12")}
    assert len(seeds) == 7


@pytest.mark.parametrize("probabilities", [[0.2, 0.3, 0.5], [1e-9, 1.0, 1.0], [0.0, 1.0, 0.0, 3.0]])
def test_weighted_draws_fit_their_probabilities(probabilities: list[float]) -> None:
    n = 40_000
    counts = np.bincount(stream(3, "weighted").weighted(probabilities, size=n), minlength=len(probabilities))
    expected = n * np.array(probabilities) / sum(probabilities)
    assert counts.sum() == n and (counts[expected == 0] == 0).all()
    frequent = expected > 5
    scaled = expected[frequent] * counts[frequent].sum() / expected[frequent].sum()
    assert scipy.stats.chisquare(counts[frequent], scaled).pvalue > 1e-4


@pytest.mark.parametrize(
    ("draws", "distribution"),
    [
        (stream(1, "n").normal(2.0, 3.0, size=20_000), scipy.stats.norm(2, 3)),
        (stream(1, "u").uniform(20_000), scipy.stats.uniform()),
        (stream(1, "g").log_gamma(np.full(20_000, 0.3)), scipy.stats.loggamma(0.3)),
        (stream(1, "h").log_gamma(np.full(20_000, 7.0)), scipy.stats.loggamma(7.0)),
    ],
    ids=["normal", "uniform", "log_gamma<1", "log_gamma>1"],
)
def test_continuous_draws_fit_their_distribution(draws: np.ndarray, distribution: object) -> None:
    assert scipy.stats.kstest(draws, distribution.cdf).pvalue > 1e-4  # type: ignore[attr-defined]


def test_dirichlet_weights_are_on_the_grid_and_survive_strong_skew() -> None:
    for number in range(200):
        logs = stream(2, "skew", number).log_gamma(np.full(7, 1e-3))
        weights = np.exp(logs - logs.max())
        shares = on_grid(weights / weights.sum()) / GRID
        assert np.isfinite(shares).all() and abs(shares.sum() - 1.0) < 1e-10
        assert (shares * GRID == np.rint(shares * GRID)).all()


@given(st.integers(0, 300), st.data())
def test_choice_is_distinct_and_in_range(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    chosen = stream(4, n, k).choice(n, k).tolist()
    assert len(chosen) == len(set(chosen)) == k and all(0 <= item < n for item in chosen)


def test_permutations_are_uniform() -> None:
    counts = Counter(tuple(stream(5, "permutation", number).permutation(3).tolist()) for number in range(6000))
    assert len(counts) == 6 and scipy.stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_generators_are_reproducible_and_leave_the_global_one_alone() -> None:
    before = repr(np.random.get_state())
    assert generator(1, "x").normal() == generator(1, "x").normal() != generator(1, "y").normal()
    assert repr(np.random.get_state()) == before


def test_impossible_draws_are_refused() -> None:
    for attempt in (
        lambda: stream(0).integers(0),
        lambda: stream(0).choice(3, 4),
        lambda: stream(0).weighted([0.0, 0.0]),
        lambda: stream("seed"),  # type: ignore[arg-type]
        lambda: stream(True),
    ):
        with pytest.raises(OptionError):
            attempt()
