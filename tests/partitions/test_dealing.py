"""Dealing keeps sizes, copies and distinctness exactly, in every corner."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedagentgym.base.streams import stream
from fedagentgym.partitions import assignment as dealing
from fedagentgym.partitions.assignment import assign_balanced


def check(sizes: list[int], items: int, seed: int = 0) -> None:
    wanted = np.array(sizes, dtype=np.int64)
    dealt = assign_balanced(wanted, items, stream(seed, "deal"))
    assert np.array_equal(dealt.sizes, wanted)
    assert not dealt.has_repeats()
    copies = dealt.count_copies(items)
    floor, more = divmod(int(wanted.sum()), items)
    assert set(copies.tolist()) <= {floor, floor + 1}
    assert int((copies == floor + 1).sum()) == more


@given(
    items=st.integers(1, 40),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=25),
    seed=st.integers(0, 5),
)
@example(items=1, shares=[1.0, 1.0, 0.0], seed=0)
@example(items=40, shares=[1.0] * 24 + [0.5], seed=0)
@example(items=7, shares=[1.0], seed=0)
def test_any_sizes_can_be_dealt(items: int, shares: list[float], seed: int) -> None:
    check([round(share * items) for share in shares], items, seed)


@pytest.mark.parametrize(
    ("sizes", "items"),
    [
        ([1000, 200, 200], 1000),
        ([50] * 99 + [0], 50),
        ([300, 1, 1, 1], 300),
        ([0, 0, 0], 5),
        ([5000, 5000, 1], 5001),
        ([2] * 3000, 3),
        ([400] * 5 + [1] * 400, 400),
        ([997] * 30 + [3] * 60, 1000),
    ],
)
def test_corners(sizes: list[int], items: int) -> None:
    check(sizes, items)


@given(
    items=st.integers(1, 12),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=9),
    seed=st.integers(0, 5),
)
@example(items=2, shares=[0.5] * 6, seed=0)
def test_repeats_are_resolved_one_by_one_where_random_exchanges_found_none(
    items: int, shares: list[float], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dealing, "_MAX_EXCHANGE_PASSES", 0)
        check([round(share * items) for share in shares], items, seed)


def test_every_pair_is_equally_likely() -> None:
    """Three clients with one, two and three of four items: each client's share of each item is its size over four."""
    sizes = np.array([1, 2, 3])
    seen = np.zeros((3, 4))
    rounds = 4000
    for seed in range(rounds):
        dealt = assign_balanced(sizes, 4, stream(seed, "law"))
        seen[dealt.owners, dealt.items] += 1
    expected = sizes[:, None] / 4
    error = 4.5 * np.sqrt(expected * (1 - expected) / rounds)
    assert np.all(np.abs(seen / rounds - expected) < error)


def test_holders_of_an_item_follow_the_sizes() -> None:
    """With many items each of two copies, pairs of clients meet about as often as drawing in proportion to room says."""
    dealt = assign_balanced(np.array([600, 300, 300]), 600, stream(1, "pairs"))
    held = np.zeros((3, 600), dtype=bool)
    held[dealt.owners, dealt.items] = True
    assert int((held[0] & held[1]).sum()) == 300 and int((held[1] & held[2]).sum()) == 0
