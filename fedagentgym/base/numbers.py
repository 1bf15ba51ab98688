"""The mean of a few plain numbers."""

from __future__ import annotations

from collections.abc import Sequence


def mean(numbers: Sequence[float]) -> float:
    """Their sum over their count; 0 where there are none.

    >>> mean([1.0, 2.0]), mean([])
    (1.5, 0.0)
    """
    return sum(numbers) / len(numbers) if numbers else 0.0
