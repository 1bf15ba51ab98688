"""Groups of like lengths: everyone is in one, none is too large, and no cut of the sorted lengths costs less."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.agents.model.hf import MAX_TOKENS_PER_PASS, PASS_COST, group_by_length


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8))
def test_no_cut_is_cheaper(lengths: list[int]) -> None:
    groups = group_by_length(lengths)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    cost = sum(PASS_COST + len(group) * max(lengths[index] for index in group) for group in groups)
    ordered, count = sorted(lengths), len(lengths)
    cuts = (cut for size in range(count) for cut in combinations(range(1, count), size))
    best = min(
        sum(
            PASS_COST + (stop - start) * ordered[stop - 1] for start, stop in zip((0, *cut), (*cut, count), strict=True)
        )
        for cut in cuts
    )
    assert cost == best


def test_a_pass_has_a_limit() -> None:
    groups = group_by_length([MAX_TOKENS_PER_PASS // 3] * 10 + [2 * MAX_TOKENS_PER_PASS])
    assert sorted(map(len, groups)) == [1, 1, 3, 3, 3]
