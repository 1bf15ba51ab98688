"""Means with confidence intervals, tests of differences, and the correction of these tests for multiple comparisons.

The unit of analysis is what a repeated experiment would draw anew.

* For an agent that is not trained, the unit is the task. `estimate_tasks` and `compare_tasks` need one evaluation.
* For a method, the unit is the training run (`estimate_replicates`, `compare_replicates`). A replicate is a world, a warm start
  and a random stream, drawn together and the same for every row. Differences are taken within replicates and tested by Student's
  t. With fewer than `MIN_REPLICATES` there is no interval and no p-value, since two or three runs do not show how much runs vary.
  Shares count as different only if they differ both in points and in log odds: if success varies much between worlds, the
  differences are skewed on one of the two scales.

Equality within a margin is shown by two one-sided tests. `correct` applies one Holm correction to all comparisons of a page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError, OptionError

CONFIDENCE = 0.95
LEVEL = 0.05
"""The significance level of comparisons, after correction."""
MIN_REPLICATES = 5
POWER = 0.8
"""A suite can decide a difference if it would find the difference with this probability."""
HALF_A_TASK = 0.005
"""Added to both sides of odds, so that the log odds of shares 0 and 1 are finite: half a task of a hundred."""
PRIOR_TASKS = 4
"""Tasks that are added to the variance of a share, each with the largest variance for its mean (Agresti and Coull)."""
MAX_VALUE = 1e70
"""The maximum size of a value; the square of a variance of such values is still finite."""
Values = NDArray[np.float64]


def check_size(values: Sequence[float] | Values) -> None:
    """Raise a `DataError` if the variance cannot be computed: for infinite values, NaN and values above `MAX_VALUE` in size.

    >>> check_size([0.5, 1e308])
    Traceback (most recent call last):
    fedagentgym.base.errors.DataError: means and differences are of numbers up to 1e+70 in size, got 1e+308
    """
    array = np.asarray(values, np.float64)
    fits = np.abs(array) <= MAX_VALUE  # False for NaN
    if not fits.all():
        unfit = float(array[~fits].flat[0])
        raise DataError(f"means and differences are of numbers up to {MAX_VALUE:g} in size, got {unfit:g}")


class Estimate(NamedTuple):
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float


class Spread(NamedTuple):
    """A mean over replicates and its confidence interval, whose ends are None if there are too few replicates."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """A paired difference, with the p-values of its tests.

    `p` is the p-value of the test for a difference, and `p_unequal` that of the two one-sided tests for equality within a margin.
    Both are None if there are too few replicates; `p_unequal` is also None if there is no margin. `adjusted` and
    `adjusted_unequal` are these p-values after the correction. `values` are the differences of the single replicates; a
    comparison over tasks has none.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted: float | None = None
    p_unequal: float | None = None
    adjusted_unequal: float | None = None
    values: tuple[float, ...] = ()

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval, if there is one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def is_decided(self) -> bool:
        """True if the corrected test finds a difference."""
        return self.adjusted is not None and self.adjusted < LEVEL

    @property
    def is_equal(self) -> bool:
        """True if the corrected tests find equality within the margin."""
        return self.adjusted_unequal is not None and self.adjusted_unequal < LEVEL


# ---- the unit is the task ---------------------------------------------------------------------------------------------


def estimate_tasks(
    strata: Sequence[Values], bounded: Sequence[bool], confidence: float = CONFIDENCE
) -> tuple[Values, Values, Values]:
    """Means over strata of equal weight, with their intervals.

    Args:
        strata: `values[task, measure]` of each stratum (an evaluation set, a scenario); repeats of a task are averaged before.
        bounded: for each measure, whether its values lie between 0 and 1. A bounded measure has Wilson's interval for an
            effective number of tasks, another one Student's t interval. If a stratum has a single task, an unbounded
            measure has no interval: both ends are its mean.
        confidence: level of the intervals.

    Returns:
        The means, the lower ends and the upper ends, each with a value for every measure.

    >>> mean, low, high = estimate_tasks([np.zeros((4, 1))], [True])
    >>> round(float(low[0]), 3), round(float(high[0]), 3)
    (0.0, 0.49)
    """
    for values in strata:
        check_size(values)
    means: Values = np.mean([values.mean(axis=0) for values in strata], axis=0)
    share = np.asarray(bounded, bool)
    low, high = means.copy(), means.copy()
    if share.any():
        low[share], high[share] = _find_wilson([values[:, share] for values in strata], means[share], confidence)
    if not share.all():
        half = np.zeros(int((~share).sum()))
        if min(map(len, strata)) > 1:
            parts = [values[:, ~share].var(axis=0, ddof=1) / len(values) for values in strata]
            error, freedom = _combine(parts, [len(values) for values in strata])
            half = error * _quantile(confidence, freedom)
        low[~share], high[~share] = means[~share] - half, means[~share] + half
    return means, low, high


def _find_wilson(strata: Sequence[Values], means: Values, confidence: float) -> tuple[Values, Values]:
    """Wilson's interval for the effective number of tasks, that of independent binary tasks with this mean and variance."""
    most = np.clip(means * (1 - means), 0.0, None)
    squares = [((values - values.mean(axis=0)) ** 2).sum(axis=0) for values in strata]
    variances = [
        (square + PRIOR_TASKS * most) / (len(values) + PRIOR_TASKS) / len(values)
        for values, square in zip(strata, squares, strict=True)
    ]
    plain = 1 / sum(1 / len(values) for values in strata)
    total = np.sum(variances, axis=0)
    count = len(strata) ** 2 * np.divide(most, total, out=np.full_like(most, plain), where=most * total > 0)
    from scipy.special import ndtri

    z = float(ndtri((1 + confidence) / 2))
    middle = (means + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(most / count + z * z / (4 * count * count))
    # despite rounding errors, the interval contains the mean
    return np.minimum(np.clip(middle - half, 0, 1), means), np.maximum(np.clip(middle + half, 0, 1), means)


def _combine(parts: Sequence[Values], counts: Sequence[float]) -> tuple[Values, Values]:
    """The standard error of a mean over strata from the variances of their means, and Welch's degrees of freedom."""
    total = np.sum(parts, axis=0)
    below = np.sum([part**2 / (count - 1) for part, count in zip(parts, counts, strict=True)], axis=0)
    freedom = np.divide(total**2, below, out=np.full_like(total, sum(counts) - len(counts)), where=below > 0)
    return np.sqrt(total) / len(parts), freedom


def compare_tasks(strata: Sequence[Values], *, bounded: bool, margin: float = 0.0) -> Difference:
    """The mean of the paired differences per task, `values[task]` in each stratum.

    For `bounded` measures, whose differences are at most 1, the interval and the test count two further tasks with differences
    of 1 and -1 (Bonett and Price), so that a few tasks with the same outcome decide nothing. Other measures have a plain paired
    t test.
    """
    for values in strata:
        check_size(values)
    mean = float(np.mean([values.mean() for values in strata]))
    if not bounded and min(map(len, strata)) < 2:
        return Difference(mean)
    extra = 2 / len(strata) if bounded else 0.0
    counts = [len(values) + extra for values in strata]
    centres = [values.sum() / count for values, count in zip(strata, counts, strict=True)]
    if bounded:
        squares = [
            (values @ values + extra) / count - centre**2
            for values, count, centre in zip(strata, counts, centres, strict=True)
        ]
    else:
        squares = [values.var(ddof=1) for values in strata]
    parts = [np.atleast_1d(square / count) for square, count in zip(squares, counts, strict=True)]
    error, freedom = _combine(parts, [max(count, 2.0) for count in counts])
    found = _describe_difference(float(np.mean(centres)), float(error[0]), float(freedom[0]), margin)
    limit = 1.0 if bounded else math.inf
    assert found.low is not None and found.high is not None
    return replace(found, mean=mean, low=max(found.low, -limit), high=min(found.high, limit))


# ---- the unit is the training run -------------------------------------------------------------------------------------


def estimate_replicates(values: Sequence[float]) -> Spread:
    """The mean over replicates, given one value for each of them.

    >>> estimate_replicates([0.5, 0.7])
    Spread(mean=0.6, low=None, high=None)
    """
    check_size(values)
    mean = math.fsum(values) / len(values)
    if len(values) < MIN_REPLICATES:
        return Spread(mean, None, None)
    half = find_half_width(values)
    return Spread(mean, mean - half, mean + half)


def find_half_width(values: Sequence[float]) -> float:
    """Half the width of Student's t interval of a mean; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    return _find_error(values) * float(_quantile(CONFIDENCE, len(values) - 1.0))


def compare_replicates(values: Sequence[float], margin: float = 0.0, log_odds: Sequence[float] = ()) -> Difference:
    """Compare two rows by their differences, one difference for each replicate that both rows have.

    Args:
        values: the differences.
        margin: the smallest difference that counts; 0 leaves equality untested.
        log_odds: for shares, the same differences in log odds. `p` is then the larger p-value of the two tests, or 1 if the
            two means have different signs, so that rows differ only if they differ on both scales.
    """
    check_size(values)
    mean = math.fsum(values) / len(values)
    if len(values) < MIN_REPLICATES:
        return Difference(mean, values=tuple(values))
    found = _describe_difference(mean, _find_error(values), len(values) - 1.0, margin)
    if log_odds:
        assert len(log_odds) == len(values)
        other = math.fsum(log_odds) / len(log_odds)
        again = _describe_difference(other, _find_error(log_odds), len(log_odds) - 1.0, 0.0)
        p = 1.0 if mean * other < 0 else max(found.p or 0.0, again.p or 0.0)
        found = replace(found, p=p, adjusted=p)
    return replace(found, values=tuple(values))


def compute_log_odds(share: float) -> float:
    """The logarithm of the odds of a share.

    >>> compute_log_odds(0.5), round(compute_log_odds(1.0), 1)
    (0.0, 5.3)
    """
    return math.log((share + HALF_A_TASK) / (1 - share + HALF_A_TASK))


def _find_error(values: Sequence[float]) -> float:
    """The standard error of a mean."""
    if min(values) == max(values):
        return 0.0
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def find_quartiles(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """The lowest value, the three quartiles and the highest value, interpolated linearly between neighbours.

    >>> find_quartiles([0.1, 0.5, 0.6, 0.7, 0.9])
    (0.1, 0.5, 0.6, 0.7, 0.9)
    """
    low, first, middle, third, high = np.percentile(values, (0, 25, 50, 75, 100)).tolist()
    return low, first, middle, third, high


# ---- tests ------------------------------------------------------------------------------------------------------------


def _describe_difference(mean: float, error: float, freedom: float, margin: float) -> Difference:
    half = error * float(_quantile(CONFIDENCE, freedom))
    p = min(1.0, 2 * _find_tail(abs(mean), error, freedom))
    unequal = None
    if margin:
        unequal = max(_find_tail(margin - mean, error, freedom), _find_tail(margin + mean, error, freedom))
    return Difference(mean, mean - half, mean + half, p, p, unequal, unequal)


def _find_tail(distance: float, error: float, freedom: float) -> float:
    """The one-sided p-value of a mean at this distance from its expectation. Without a standard error, a distance within rounding
    errors counts as 0."""
    if error == 0:
        return 0.5 if abs(distance) < 1e-12 else float(distance < 0)
    from scipy.special import stdtr

    return float(stdtr(freedom, -distance / error))


def _quantile(confidence: float, freedom: float | Values) -> Any:
    """The two-sided quantile of Student's t."""
    from scipy.special import stdtrit

    return stdtrit(freedom, (1 + confidence) / 2)


# ---- power ------------------------------------------------------------------------------------------------------------


def find_decidable(spread: float, replicates: int, comparisons: int = 1) -> float:
    """The smallest difference that is found in four of five experiments (`POWER`).

    Args:
        spread: standard deviation of a difference between two runs of a replicate.
        replicates: number of replicates; with fewer than `MIN_REPLICATES` no difference is decided, however large.
        comparisons: number of comparisons that are corrected together; each must pass the strictest level of the correction.

    >>> round(find_decidable(0.05, 12), 2), find_decidable(0.05, 4)
    (0.04, inf)
    """
    if replicates < MIN_REPLICATES:
        return math.inf
    from scipy.special import nctdtrinc, stdtrit

    freedom = replicates - 1.0
    critical = stdtrit(freedom, 1 - LEVEL / comparisons / 2)
    return float(nctdtrinc(freedom, 1 - POWER, critical)) * spread / math.sqrt(replicates)


def count_replicates(spread: float, difference: float, comparisons: int = 1) -> int:
    """Return the number of replicates that are needed to find a difference in four of five experiments; see `find_decidable`.

    >>> count_replicates(0.134, 0.04)
    91
    """
    if difference <= 0:
        raise OptionError(f"a difference to be decided is above 0, got {difference:g}")
    low, high = MIN_REPLICATES, MIN_REPLICATES
    while find_decidable(spread, high, comparisons) > difference:
        low, high = high + 1, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if find_decidable(spread, middle, comparisons) <= difference else (middle + 1, high)
    return high


def bound_spread(values: Sequence[float]) -> tuple[float, float]:
    """The confidence interval of the standard deviation of normally distributed values."""
    from scipy.special import chdtri

    squares, freedom = (len(values) - 1) * float(np.var(values, ddof=1)), len(values) - 1.0
    low, high = (squares / float(chdtri(freedom, tail)) for tail in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return math.sqrt(low), math.sqrt(high)


def pool_spread(rows: Sequence[Sequence[float]]) -> float | None:
    """The pooled standard deviation of rows of differences; None if no row has two values."""
    freedom = sum(max(len(values) - 1, 0) for values in rows)
    if not freedom:
        return None
    return math.sqrt(
        sum((len(values) - 1) * float(np.var(values, ddof=1)) for values in rows if len(values) > 1) / freedom
    )


# ---- correction -------------------------------------------------------------------------------------------------------


def correct(differences: Sequence[Difference]) -> list[Difference]:
    """Correct all comparisons of a page together, for differences and for equality.

    Holm's step-down correction: a page that decides comparisons at a level makes any wrong decision with at most that
    probability. Two rows cannot be equal and differ by the margin at once, so at most as many null hypotheses are true as there
    are comparisons with a hypothesis that is not yet rejected (Shaffer).

    >>> [one.adjusted for one in correct([Difference(0.1, p=0.01), Difference(0.1, p=0.04), Difference(0.1, p=0.03)])]
    [0.03, 0.06, 0.06]
    """
    tests = {
        (place, name): p
        for place, one in enumerate(differences)
        for name, p in (("p", one.p), ("p_unequal", one.p_unequal))
        if p is not None
    }
    assert all(0 <= p <= 1 for p in tests.values())
    left = Counter(place for place, _ in tests)
    adjusted: dict[tuple[int, str], float] = {}
    largest = 0.0
    for place, name in sorted(tests, key=tests.__getitem__):
        largest = max(largest, min(1.0, len(left) * tests[place, name]))
        adjusted[place, name] = largest
        left[place] -= 1
        if not left[place]:
            del left[place]
    return [
        replace(
            one,
            adjusted=adjusted.get((place, "p")),
            adjusted_unequal=adjusted.get((place, "p_unequal")),
        )
        for place, one in enumerate(differences)
    ]


def mean(numbers: Sequence[float]) -> float:
    """The sum divided by the count; 0 for an empty sequence.

    >>> mean([1.0, 2.0]), mean([])
    (1.5, 0.0)
    """
    return sum(numbers) / len(numbers) if numbers else 0.0
