"""Which rows go through the model together: like lengths, so that little of a pass is padding."""

from __future__ import annotations

from collections.abc import Sequence

PASS_COST = 64
"""What another pass costs, counted in tokens."""
MAX_TOKENS_PER_PASS = 32_768
"""Tokens (padding included) in one pass: bounds the memory of long prompts."""


def group_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Split indices into groups, each run as a rectangle of its longest length, at the least cost of padding and passes."""
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    groups = []
    for start, stop in _cut(sorted(by_length), {length: len(found) for length, found in by_length.items()}):
        members = sorted(index for length in sorted(by_length)[start:stop] for index in by_length[length])
        groups += _split(members, max(lengths[index] for index in members))
    return groups


def _cut(distinct: list[int], counts: dict[int, int]) -> list[tuple[int, int]]:
    """Cut sorted lengths into runs: for every end the cheapest last run, given the cheapest cut of what stands before it."""
    best = [0] + [1 << 60] * len(distinct)
    begins = [0] * (len(distinct) + 1)
    for stop in range(1, len(distinct) + 1):
        rows, longest = 0, distinct[stop - 1]
        for start in range(stop - 1, -1, -1):
            rows += counts[distinct[start]]
            cost = best[start] + rows * longest + PASS_COST
            if cost < best[stop]:
                best[stop], begins[stop] = cost, start
    runs = []
    stop = len(distinct)
    while stop:
        runs.append((begins[stop], stop))
        stop = begins[stop]
    return runs[::-1]


def _split(members: list[int], longest: int) -> list[list[int]]:
    """Share members out evenly over as few passes as the limit permits."""
    most = max(1, MAX_TOKENS_PER_PASS // longest)
    passes = -(-len(members) // most)
    size = -(-len(members) // passes)
    return [members[start : start + size] for start in range(0, len(members), size)]
