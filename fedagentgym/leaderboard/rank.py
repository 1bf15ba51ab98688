"""The order of entries, their bands, and the differences that a suite asks for; `values[entry][scenario][seed, task]`.

On the methods track the unit is the run, on the agents track the task (`fedagentgym.base.statistics`). Entries of one band are
not distinguishable from its first: on the same tasks and seeds, with Holm's correction for the entries that are compared with it.
With too few runs for a test there are no ranks: a band holds the entries that are no further from its first than the
spread of the runs of all entries explains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
from fedagentgym.leaderboard.results import Result
from fedagentgym.leaderboard.suite import Expectation, Suite, Track
from fedagentgym.learning.evaluation import is_share

Scenarios = Mapping[str, Values]


@dataclass(frozen=True)
class Place:
    """An entry's place in the order, from 1, and its band; `difference` is to the leader of its band, none for the leader itself.

    `rank` is None if there are too few runs to rank.
    """

    order: int
    band: int
    rank: int | None
    difference: Difference | None


@dataclass(frozen=True)
class Unit:
    """The compared units: runs on the methods track, tasks on the agents track."""

    track: Track
    measure: str

    def compare(self, first: Scenarios, second: Scenarios, margin: float = 0.0) -> Difference:
        """The paired difference of two entries in the same scenarios; not yet corrected."""
        if self.track == "methods":
            pairs = zip(average_runs(first), average_runs(second), strict=True)
            return compare_replicates([one - other for one, other in pairs], margin)
        paired = [(first[name] - second[name]).mean(axis=0) for name in first]
        return compare_tasks(paired, bounded=is_share(self.measure), margin=margin)


def rank(
    values: Mapping[str, Scenarios], unit: Unit, better: Literal["higher", "lower"] = "higher"
) -> dict[str, Place]:
    """The places of entries by name; all played the same scenarios, tasks and seeds."""
    if not values:
        return {}
    sign = 1.0 if better == "higher" else -1.0
    runs = {name: [sign * one for one in average_runs(tables)] for name, tables in values.items()}
    left = sorted(runs, key=lambda name: (-np.mean(runs[name]), name))
    is_ranked = unit.track == "agents" or len(runs[left[0]]) >= FEWEST_REPLICATES
    reach = find_reach(list(runs.values()))
    places: dict[str, Place] = {}
    band = 0
    while left:
        band += 1
        members = _find_band(left, values, unit, sign) if is_ranked else _find_near(left, runs, reach)
        for name, difference in members.items():
            order = len(places) + 1
            places[name] = Place(order, band, order if is_ranked else None, difference)
        left = left[len(members) :]
    return places


def _find_band(
    left: Sequence[str], values: Mapping[str, Scenarios], unit: Unit, sign: float
) -> dict[str, Difference | None]:
    """The first of the remaining entries, and the following ones that are not significantly worse."""
    leader, *others = left
    found = correct([unit.compare(values[leader], values[other]) for other in others])
    members: dict[str, Difference | None] = {leader: None}
    for other, difference in zip(others, found, strict=True):
        if difference.adjusted is not None and difference.adjusted < LEVEL and sign * difference.mean > 0:
            break
        members[other] = difference
    return members


def _find_near(left: Sequence[str], runs: Mapping[str, Sequence[float]], reach: float) -> dict[str, Difference | None]:
    """The first of the remaining entries, and the following ones within its reach."""
    first = np.mean(runs[left[0]])
    return {name: None for name in left if first - np.mean(runs[name]) <= reach}


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
    unit = Unit(suite.track, suite.rank_by)
    pairs, found = [], []
    for first, second, scenario in suite.comparisons:
        one, other = (values.get(name, {}).get(scenario) for name in (first, second))
        if one is not None and other is not None and one.shape == other.shape:
            pairs.append((first, second, scenario))
            found.append(unit.compare({scenario: one}, {scenario: other}, suite.smallest_difference))
    return [Compared(*pair, one) for pair, one in zip(pairs, correct(found), strict=True)]


class Control(NamedTuple):
    """One method under two random streams: the differences of the ranked measure, not corrected, and of how many comparisons (of
    measures and categories, in every scenario) how many show a difference at `LEVEL`."""

    first: str
    second: str
    differences: Mapping[str, Difference]
    tests: int
    found: int


def compare_control(suite: Suite, entries: Sequence[Result]) -> Control | None:
    """The suite's control, if both of its entries have played."""
    known = {entry.name: entry for entry in entries}
    if suite.control is None or not set(suite.control) <= set(known):
        return None
    first, second = suite.control
    ranked, found = {}, []
    for scenario in suite.scenarios:
        one, other = (list_numbers(known[name], scenario) for name in suite.control)
        rows = {name: compare_replicates(np.subtract(one[name], other[name]).tolist()) for name in one if name in other}
        ranked[scenario] = rows[suite.rank_by]
        found += [row.p for row in rows.values() if row.p is not None]
    return Control(first, second, ranked, len(found), sum(p < LEVEL for p in found))


def list_numbers(entry: Result, scenario: str) -> dict[str, list[float]]:
    """The numbers of every run in a scenario that can be better or worse, and its success in every category."""
    runs = entry.numbers.runs[scenario]
    names = [name for name in next(iter(runs.values())).means if find_metric(name).unit in ("share", "points", "score")]
    found = {name: entry.numbers.list_runs(name, scenario) for name in names}
    ranked = [entry.records[scenario, seed].ranked for seed in runs]
    categories = [one.categories for one in ranked if one is not None]
    for category in categories[0]:
        values = [one[category]["success"]["mean"] for one in categories if category in one]
        found[f"success in {category}"] = values
    return {name: values for name, values in found.items() if len(values) == len(runs)}


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
                outcomes[one.scenario] = "not decided" if difference.p is not None else "too few runs"
    return outcomes


def read_compared(suite: Suite, difference: Difference) -> str:
    """Return what a planned difference shows; if nothing, how many runs would decide the smallest difference that counts."""
    margin = suite.smallest_difference
    shown = f"{100 * margin:g} points"
    if suite.track == "agents":
        return read_difference(difference, shown)
    return read_planned(difference, margin, len(suite.comparisons), shown)


def read_planned(difference: Difference, margin: float, comparisons: int, shown: str) -> str:
    """Return what a difference shows; if nothing, how many runs find one as large as the margin in four of five experiments.

    Args:
        difference: over replicates, corrected.
        margin: the smallest difference that counts.
        comparisons: how many are corrected together.
        shown: the margin in the words of the page.
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
    if found := [*direction, *equality]:
        return ", ".join(found)
    return "not decided" if difference.p is not None else "too few runs"
