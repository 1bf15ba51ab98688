"""Draws for many clients at once: probabilities, category counts, distinct numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.streams import GRID, StreamBatch
from fedagentgym.partitions import assignment as draws
from fedagentgym.partitions.assignment import (
    iter_batches,
    redistribute_overflow,
    sample_category_counts,
    sample_distinct,
    softmax,
)


def test_probabilities_are_in_units_of_the_grid() -> None:
    found = softmax(np.log(np.array([[1.0, 3.0], [5.0, 5.0]])) + 700.0)
    assert found.tolist() == [[GRID // 4, 3 * GRID // 4], [GRID // 2, GRID // 2]]
    assert softmax(np.array([[0.0, 800.0], [-800.0, 0.0]])).tolist() == [[0, GRID], [0, GRID]]


def test_a_client_without_weights_draws_nothing() -> None:
    streams = StreamBatch(0, "test", count=3)
    found = sample_category_counts(streams, np.array([4, 4, 0]), np.array([[0, 0, 0], [0, 7, 0], [1, 1, 1]]))
    assert found.tolist() == [[0, 0, 0], [0, 4, 0], [0, 0, 0]]


def test_categories_are_drawn_in_proportion_to_their_weights() -> None:
    clients = 400
    weights = np.tile(np.array([1, 0, 2, 5]), (clients, 1))
    found = sample_category_counts(StreamBatch(1, "test", count=clients), np.full(clients, 50), weights)
    assert np.all(found.sum(axis=1) == 50)
    expected = np.array([1, 0, 2, 5]) / 8
    error = 4.5 * np.sqrt(expected * (1 - expected) / (50 * clients))
    assert np.all(np.abs(found.sum(axis=0) / (50 * clients) - expected) <= error)


def test_what_a_category_cannot_hold_goes_to_those_with_weight_and_to_all_others_only_after_them() -> None:
    """A weight of a single unit is a weight; capacity alone counts only where no category with a weight has any left."""
    clients = 20
    streams = StreamBatch(0, "test", count=clients)
    counts, weights = np.tile([6, 0, 0], (clients, 1)), np.tile([9, 1, 0], (clients, 1))
    assert redistribute_overflow(streams, counts, weights, np.array([3, 3, 5])).tolist() == [[3, 3, 0]] * clients
    assert redistribute_overflow(streams, counts, weights, np.array([3, 2, 5])).tolist() == [[3, 2, 1]] * clients


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1)), min_size=1, max_size=8), st.integers(0, 9))
def test_every_group_gets_so_many_distinct_numbers_below_its_size(groups: list[tuple[int, float]], seed: int) -> None:
    size = np.array([size for size, _ in groups])
    want = np.array([round(share * size) for size, share in groups])
    owner = np.arange(len(groups)) // 2
    group, number = sample_distinct(StreamBatch(seed, "test", count=len(groups)), owner, size, want)
    assert np.array_equal(np.bincount(group, minlength=len(groups)), want)
    assert np.all(number >= 0) and np.all(number < size[group])
    pairs = list(zip(group.tolist(), number.tolist(), strict=True))
    assert pairs == sorted(set(pairs))


@pytest.mark.parametrize("want", [1, 2, 3])
def test_every_set_of_numbers_is_equally_likely(want: int) -> None:
    """With three of four, the one that is left out is drawn."""
    clients = 2400
    every = np.arange(clients)
    group, number = sample_distinct(
        StreamBatch(3, "test", count=clients), every, np.full(clients, 4), np.full(clients, want)
    )
    found = Counter(tuple(number[group == client].tolist()) for client in range(clients))
    sets = {1: 4, 2: 6, 3: 4}[want]
    assert len(found) == sets
    assert all(abs(count - clients / sets) < 4.5 * np.sqrt(clients / sets) for count in found.values())


@pytest.mark.parametrize(("entries", "batches"), [(1, [10]), (4, [10]), (5, [8, 2]), (40, [1] * 10), (10**6, [1] * 10)])
def test_batches_cover_the_clients_in_order(entries: int, batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_MAX_BATCH_ENTRIES", 40)
    found = list(iter_batches(10, entries))
    assert [len(part) for part in found] == batches
    assert [client for part in found for client in part] == list(range(10))
