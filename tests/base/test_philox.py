"""Many streams at once are, word for word, the single streams of numpy's generator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.streams import StreamBatch, reduce_below, stream


@given(
    seed=st.integers(-(2**70), 2**70),
    first=st.integers(0, 10**9),
    reads=st.lists(st.lists(st.integers(0, 19), min_size=4, max_size=4), min_size=1, max_size=4),
)
def test_words_are_those_of_single_streams(seed: int, first: int, reads: list[list[int]]) -> None:
    batch = StreamBatch(seed, "purpose", 5, first=first, count=4)
    singles = [stream(seed, "purpose", 5, first + number) for number in range(4)]
    for read in reads:
        expected = np.concatenate([single.raw(count) for single, count in zip(singles, read, strict=True)])
        assert np.array_equal(batch.random_raw(np.array(read)), expected)


def test_a_large_batch_does_not_depend_on_its_blocks() -> None:
    batch = StreamBatch(1, "wide", count=70_000)
    words = batch.random_raw(np.full(70_000, 3))
    assert np.array_equal(words[-3:], stream(1, "wide", 69_999).raw(3))


def test_uniform_and_normal_agree_with_single_streams() -> None:
    uniform = StreamBatch(3, "u", count=3).uniform(7)
    assert np.array_equal(uniform[2], stream(3, "u", 2).uniform(size=7))
    assert np.array_equal(StreamBatch(3, "u", count=3).normal(7)[1], stream(3, "u", 1).normal(size=7))


def test_below_refuses_exactly_the_words_that_would_bias() -> None:
    words = np.array([0, 5, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    values, fair = reduce_below(words, np.array([3, 3, 3, 3]))
    assert values.tolist()[:2] == [0, 2] and fair.tolist() == [True, True, True, False]
    assert reduce_below(words, np.full(4, 2**62))[1].all()


@pytest.mark.parametrize("high", [1, 2, 7, 10**6])
def test_below_agrees_with_the_stream(high: int) -> None:
    words = stream(9, "x").raw(1000)
    assert np.array_equal(reduce_below(words, np.full(1000, high))[0], stream(9, "x").integers(high, size=1000))
