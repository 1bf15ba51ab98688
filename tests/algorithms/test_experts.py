"""FedGRPO's arithmetic against plain loops, and the properties that no score matrix may break."""

from __future__ import annotations

import math
from collections import Counter
from typing import get_args

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedagentgym.algorithms.experts import (
    EPSILON,
    Aggregate,
    choose_experts,
    combine_scores,
    compute_competence,
    find_nearest,
    pack_bits,
    unpack_bits,
)
from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import stream

AGGREGATES = get_args(Aggregate)
scores = st.sampled_from([0.0, 1.0, 8.0, 9.0, 0.25, float("nan")]) | st.floats(-5, 5)
matrices = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 8)), elements=scores)


def loops(rows: list[list[float]], per_row: bool) -> list[float]:
    """The estimators, written out."""

    def standardised(flat: list[float]) -> tuple[float, float]:
        mean = sum(flat) / len(flat)
        return mean, math.sqrt(sum((value - mean) ** 2 for value in flat) / len(flat)) + EPSILON

    everything = [value for row in rows for value in row if not math.isnan(value)]
    result = []
    for column in range(len(rows[0])):
        parts = []
        for row in rows:
            if math.isnan(row[column]):
                continue
            mean, deviation = standardised([value for value in row if not math.isnan(value)] if per_row else everything)
            parts.append((row[column] - mean) / deviation)
        result.append(sum(parts) / len(parts) if parts else 0.0)
    return result


@given(matrices)
def test_estimators_are_their_formulas(matrix: np.ndarray) -> None:
    if not np.isfinite(matrix).any():
        assert all(combine_scores(matrix, aggregate) is None for aggregate in AGGREGATES)
        return
    assert np.allclose(combine_scores(matrix, "pool"), loops(matrix.tolist(), per_row=False), atol=1e-6)
    assert np.allclose(combine_scores(matrix, "per_expert"), loops(matrix.tolist(), per_row=True), atol=1e-6)
    assert np.allclose(combine_scores(matrix, "split"), loops([matrix.reshape(-1).tolist()], per_row=False), atol=1e-6)


@given(st.floats(-10, 10), st.integers(1, 4), st.integers(1, 8))
def test_equal_scores_teach_nothing(value: float, experts: int, candidates: int) -> None:
    for aggregate in AGGREGATES:
        assert not np.asarray(combine_scores(np.full((experts, candidates), value), aggregate)).any()


@given(hnp.arrays(np.float64, st.integers(2, 8), elements=st.sampled_from([0.0, 1.0])), st.integers(1, 5))
def test_equal_rows_are_as_good_as_one(row: np.ndarray, experts: int) -> None:
    """With experts that agree, `pool` is GRPO on the candidates: population mean and deviation stay what they are."""
    assert np.allclose(
        combine_scores(np.tile(row, (experts, 1)), "pool"), combine_scores(row[None, :], "pool"), atol=1e-12
    )


def test_standardising_one_candidate_over_its_experts_learns_nothing() -> None:
    """The paper's formula taken literally: the experts' standardised scores of one candidate sum to zero."""
    column = np.array([[1.0], [0.0], [0.25]])
    assert abs(float(combine_scores(column, "pool")[0])) < 1e-9


def test_the_nearest_examples_are_those_of_greatest_cosine() -> None:
    random = np.random.default_rng(0)
    examples, questions = random.normal(size=(30, 5)), random.normal(size=(4, 5))
    examples /= np.linalg.norm(examples, axis=1, keepdims=True)
    found = find_nearest(questions, examples, 7)
    for row, question in zip(found, questions, strict=True):
        expected = sorted(range(30), key=lambda index: -float(question @ examples[index]))[:7]
        assert row.tolist() == expected


def test_competence_is_the_share_of_right_neighbours() -> None:
    right = {3: np.array([True, False, True, True]), 1: np.array([False] * 4)}
    assert compute_competence(right, np.array([0, 1, 3])) == {1: 0.0, 3: 2 / 3}


@given(st.dictionaries(st.integers(0, 50), st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=12), st.data())
def test_no_chosen_expert_is_worse_than_one_left_out(skill: dict[int, float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(skill)))
    chosen = choose_experts(skill, count, stream(0, "choose"))
    assert len(set(chosen)) == count and set(chosen) <= set(skill)
    left = [value for client, value in skill.items() if client not in chosen]
    assert not left or min(skill[client] for client in chosen) >= max(left)


def test_ties_favour_no_client() -> None:
    counts = Counter(
        client
        for question in range(3000)
        for client in choose_experts(dict.fromkeys(range(5), 0.5), 2, stream(1, question))
    )
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-4
    with pytest.raises(OptionError, match="there are 5 clients"):
        choose_experts(dict.fromkeys(range(5), 0.5), 6, stream(0))


@given(st.lists(st.booleans(), max_size=40))
def test_one_bit_per_example_travels(bits: list[bool]) -> None:
    data = pack_bits(bits)
    assert data.nbytes == (len(bits) + 7) // 8 and unpack_bits(data, len(bits)).tolist() == bits
