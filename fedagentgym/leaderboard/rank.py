"""The order of entries, their bands, and the differences that a suite asks for; `values[entry][scenario][seed, task]`.

On the methods track the unit is the run, on the agents track the task (`fedagentgym.base.statistics`). Entries of one band are
not distinguishable from its first: on the same tasks and seeds, with Holm's correction for the entries that are compared with it.
With too few runs for a test there are no ranks: a band holds the entries that are no further from its first than the
spread of the runs of all entries explains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedagentgym.base.statistics import (
    FEWEST_REPLICATES,
    LEVEL,
    Difference,
    Values,
    compare_replicates,
    compare_tasks,
    correct,
    count_replicates,
    pool_spread,
)
from fedagentgym.leaderboard.measures import average_runs
from fedagentgym.leaderboard.metrics import find_metric
from fedagentgym.leaderboard.suite import Expectation, Suite, Track
from fedagentgym.learning.evaluation import is_share

Scenarios = Mapping[str, Values]


class Place(NamedTuple):
    """An entry's place in the order, from 1, its band, and its rank: None if there are too few runs to rank."""

    order: int
    band: int
    rank: int | None


def compare_entries(
    first: Scenarios, second: Scenarios, measure: str, *, over_runs: bool, margin: float = 0.0
) -> Difference:
    """The paired difference of two entries in the same scenarios, over runs or over tasks; not yet corrected."""
    if over_runs:
        pairs = zip(average_runs(first), average_runs(second), strict=True)
        return compare_replicates([one - other for one, other in pairs], margin)
    paired = [first[name].mean(axis=0) - second[name].mean(axis=0) for name in first]
    return compare_tasks(paired, bounded=is_share(measure), margin=margin)


def rank(values: Mapping[str, Scenarios], track: Track, measure: str) -> dict[str, Place]:
    """The places of entries by name; all played the same scenarios, tasks and seeds."""
    sign = -1.0 if find_metric(measure).better == "lower" else 1.0
    runs = {name: [sign * one for one in average_runs(tables)] for name, tables in values.items()}
    means = {name: float(np.mean(each)) for name, each in runs.items()}
    left = sorted(runs, key=lambda name: (-means[name], name))
    over_runs, reach = track == "methods", find_reach(list(runs.values()))
    is_ranked = not over_runs or all(len(each) >= FEWEST_REPLICATES for each in runs.values())
    places: dict[str, Place] = {}
    band = 0
    while left:
        band += 1
        leader, *others = left
        if is_ranked:
            differences = [
                compare_entries(values[leader], values[other], measure, over_runs=over_runs) for other in others
            ]
            is_worse = [one.is_decided and sign * one.mean > 0 for one in correct(differences)]
        else:
            is_worse = [means[leader] - means[other] > reach for other in others]
        size = 1 + [*is_worse, True].index(True)
        for name in left[:size]:
            order = len(places) + 1
            places[name] = Place(order, band, order if is_ranked else None)
        left = left[size:]
    return places


def find_reach(runs: Sequence[Sequence[float]]) -> float:
    """Return how far apart the means of equal entries can be if runs vary alike in all; infinite if no entry has two runs."""
    spread = pool_spread(runs)
    if spread is None or len(runs) < 2:
        return math.inf
    from scipy.special import stdtrit

    freedom = sum(len(values) - 1 for values in runs)
    quantile = stdtrit(freedom, 1 - LEVEL / (len(runs) * (len(runs) - 1)))
    return float(quantile * spread * math.sqrt(2 / min(map(len, runs)))) + 1e-12


class Compared(NamedTuple):
    """An entry less another one in a scenario."""

    first: str
    second: str
    scenario: str
    difference: Difference


def compare_pairs(suite: Suite, values: Mapping[str, Scenarios]) -> list[Compared]:
    """The planned differences that both have played, corrected for all of them together."""
    margin, over_runs = suite.smallest_difference, suite.track == "methods"
    pairs, found = [], []
    for first, second, scenario in suite.comparisons:
        one, other = (values.get(name, {}).get(scenario) for name in (first, second))
        if one is not None and other is not None and one.shape == other.shape:
            pairs.append((first, second, scenario))
            tables = {scenario: one}, {scenario: other}
            found.append(compare_entries(*tables, suite.rank_by, over_runs=over_runs, margin=margin))
    return [Compared(*pair, one) for pair, one in zip(pairs, correct(found), strict=True)]


def find_outcome(expected: Expectation, found: Sequence[Compared]) -> dict[str, str]:
    """Return what came out of an expectation in each of its scenarios that both entries have played."""
    pair, sign = (expected.first, expected.second), {"above": 1, "below": -1, "equal to": 0}[expected.relation]
    outcomes = {}
    for one in found:
        if (one.first, one.second) == pair and one.scenario in (expected.scenarios or (one.scenario,)):
            difference = one.difference
            if difference.is_equal:
                outcomes[one.scenario] = "otherwise" if sign else "as expected"
            elif difference.is_decided:
                reached = "as expected" if sign * difference.mean >= (expected.by or 0) else "so, but smaller"
                outcomes[one.scenario] = reached if sign * difference.mean > 0 else "otherwise"
            else:
                outcomes[one.scenario] = read_difference(difference)
    return outcomes


def read_planned(difference: Difference, margin: float, comparisons: int, shown: str) -> str:
    """Return what a difference shows; if nothing, how many runs find one as large as the margin in four of five experiments.

    `comparisons` are corrected together; `shown` is the margin in the words of the page.
    """
    reading, spread = read_difference(difference, shown), pool_spread([difference.values])
    if reading != "not decided" or not margin or spread is None:
        return reading
    needed = count_replicates(spread, margin, comparisons)
    if needed <= len(difference.values):
        return f"{reading}, though {needed:,} runs would find {shown}"
    return f"{reading}: takes {needed:,} runs for {shown}"


def read_difference(difference: Difference, margin: str = "") -> str:
    """Return what a difference shows: a direction, or equality within the margin, or both, or neither.

    >>> read_difference(Difference(0.1, adjusted=0.002)), read_difference(Difference(0.0, adjusted_unequal=0.01), "4 points")
    ('above', 'equal within 4 points')
    """
    direction = ["above" if difference.mean > 0 else "below"] if difference.is_decided else []
    equality = [f"equal within {margin}"] if difference.is_equal else []
    return ", ".join([*direction, *equality]) or ("not decided" if difference.p is not None else "too few runs")
