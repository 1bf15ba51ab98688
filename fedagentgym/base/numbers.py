"""The mean of a few plain numbers."""

from __future__ import annotations

from collections.abc import Sequence


def mean(numbers: Sequence[float]) -> float:
    """The sum divided by the count; 0 for an empty sequence.

    >>> mean([1.0, 2.0]), mean([])
    (1.5, 0.0)
    """
    return sum(numbers) / len(numbers) if numbers else 0.0
