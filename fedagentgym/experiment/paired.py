"""Differences between two rows of a table, seed by seed: intervals, tests corrected for their number, and tests of equality.

Runs of the same seed share what the seed determines (the order of tasks, the draws of held-out episodes), so differences are
taken within each seed first; they vary like a sample of independent numbers, and Student's t applies to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedagentgym.base.errors import OptionError

EQUALITY_CONFIDENCE = 0.90
"""Two one-sided tests at 5 % reject a difference of `margin` exactly when this interval lies within -margin..margin."""


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two rows, seed by seed, and tests of it.

    `p` belongs to the two-sided test that there is no difference, `corrected` is the same after Holm's correction for all
    differences it was reported with. A single seed has no interval, and a `p` of 1.
    """

    row: str
    base: str
    values: tuple[float, ...]
    p: float
    corrected: float

    @property
    def mean(self) -> float:
        return _mean(self.values)

    def half_width(self, confidence: float = 0.95) -> float:
        """Half of the interval of the mean; infinite for a single seed."""
        return _standard_error(self.values) * _quantile(confidence, len(self.values))

    def is_within(self, margin: float) -> bool:
        """Whether the two are equal up to `margin`: the 90 % interval lies within it."""
        return abs(self.mean) + self.half_width(EQUALITY_CONFIDENCE) <= margin


def compute_p(values: Sequence[float]) -> float:
    """Two-sided p of a paired t test: how often the mean of such differences would be as far from 0 if there were none."""
    error, middle = _standard_error(values), _mean(values)
    if math.isinf(error) or middle == 0:
        return 1.0
    if error == 0:
        return 0.0
    from scipy.stats import t

    return float(2 * t.sf(abs(middle) / error, len(values) - 1))


def correct_holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: rejecting what is below 5 % errs in any of them with at most 5 %."""
    if not all(0 <= one <= 1 for one in p):
        raise OptionError(f"p values are between 0 and 1, got {list(p)}")
    corrected, largest = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = largest
    return corrected


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _standard_error(values: Sequence[float]) -> float:
    """Of the mean; infinite for a single number."""
    if len(values) < 2:
        return math.inf
    middle = _mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))


def _quantile(confidence: float, count: int) -> float:
    if count < 2:
        return 1.0
    from scipy.stats import t

    return float(t.ppf((1 + confidence) / 2, count - 1))
