"""Uncertainty: bootstrap over tasks and seeds, paired differences, and the correction for multiple comparisons.

Tasks are redrawn, and seeds are redrawn, each for the whole of a scenario: the seeds of a scenario play the same tasks; results
of two entries on the same task and seed are subtracted before redrawing. Scenarios are not redrawn, since a suite is about
exactly these. With a single seed the interval does not cover other seeds. Draws come from streams of fixed names, so that the
same episodes give the same interval to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.streams import stream
from fedagentgym.leaderboard.record import Interval

CONFIDENCE, RESAMPLES = 0.95, 1000
COMPARISON_RESAMPLES = 10_000
"""More resamples than for an interval: a p-value that is multiplied by the number of comparisons must be able to be small."""
BLOCK = 1000
"""Resamples that are held in memory at a time."""
Values = NDArray[np.float64]


class Difference(NamedTuple):
    """The difference of two entries: mean, interval, p-value, and the p-value after Holm's correction."""

    mean: float
    low: float
    high: float
    p: float
    adjusted: float


def draw_weights(count: int, resamples: int, *path: int | str) -> Values:
    """How often each of `count` items is drawn in each resample, as shares: rows sum to 1."""
    draws = stream(0, "leaderboard", *path).integers(count, resamples * count)
    rows = np.repeat(np.arange(resamples), count)
    counts = np.bincount(rows * count + draws, minlength=resamples * count)
    weights: Values = counts.reshape(resamples, count) / count
    return weights


def resample_scenario(values: Values, resamples: int, name: str) -> Values:
    """The means of redrawn `values[seed, task, measure]`: one row for each resample."""
    seeds, tasks, measures = values.shape
    blocks = []
    for start in range(0, resamples, BLOCK):
        rows = min(BLOCK, resamples - start)
        by_task = draw_weights(tasks, rows, "tasks", name, start)
        by_seed = draw_weights(seeds, rows, "seeds", name, start)
        found = np.zeros((rows, measures))
        for number in range(seeds):
            found += by_seed[:, number, None] * (by_task @ values[number])
        blocks.append(found)
    return np.concatenate(blocks)


def resample_suite(scenarios: Mapping[str, Values], resamples: int) -> Values:
    """The means over scenarios with equal weights."""
    drawn = [resample_scenario(values, resamples, name) for name, values in scenarios.items()]
    mean: Values = np.mean(drawn, axis=0)
    return mean


def make_intervals(values: Values, resampled: Values) -> list[Interval]:
    """Means with the ends of their percentile intervals, a measure each."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return [
        Interval(mean=float(mean), low=float(a), high=float(b)) for mean, a, b in zip(values, low, high, strict=True)
    ]


def estimate_scenario(names: Sequence[str], values: Values, name: str) -> dict[str, Interval]:
    """The measures of `values[seed, task, measure]`."""
    found = make_intervals(values.mean(axis=(0, 1)), resample_scenario(values, RESAMPLES, name))
    return dict(zip(names, found, strict=True))


def estimate_suite(names: Sequence[str], scenarios: Mapping[str, Values]) -> dict[str, Interval]:
    """The measures over all scenarios with equal weights."""
    means = np.mean([values.mean(axis=(0, 1)) for values in scenarios.values()], axis=0)
    return dict(zip(names, make_intervals(means, resample_suite(scenarios, RESAMPLES)), strict=True))


def compare_scenarios(first: Mapping[str, Values], second: Mapping[str, Values]) -> Difference:
    """The paired difference of `values[seed, task]` of the same scenarios, tasks and seeds; not yet corrected."""
    paired = {name: (first[name] - second[name])[:, :, None] for name in first}
    mean = float(np.mean([values.mean() for values in paired.values()]))
    resampled = resample_suite(paired, COMPARISON_RESAMPLES)[:, 0]
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    p = find_p_value(resampled)
    return Difference(mean, float(low), float(high), p, p)


def find_p_value(resampled: Values) -> float:
    """Two-sided: how often a redrawn difference lies on the other side of 0, or on it up to rounding."""
    found = np.round(resampled, 12)
    below, above = int((found <= 0).sum()), int((found >= 0).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (len(resampled) + 1))


def correct_for_many(differences: Sequence[Difference]) -> list[Difference]:
    """Holm's correction: the smallest p-value is multiplied by the number of comparisons, the next by one less, and none
    becomes smaller than a previous one."""
    adjusted = [0.0] * len(differences)
    largest = 0.0
    for place, number in enumerate(sorted(range(len(differences)), key=lambda one: differences[one].p)):
        largest = max(largest, min(1.0, differences[number].p * (len(differences) - place)))
        adjusted[number] = largest
    return [found._replace(adjusted=p) for found, p in zip(differences, adjusted, strict=True)]
