"""The differences that a suite asks for (`pairs`): between two entries, in every scenario, on the same tasks and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedagentgym.leaderboard.intervals import Difference, Values, compare_scenarios, correct_for_many
from fedagentgym.leaderboard.suite import Suite

LEVEL = 0.05


class Compared(NamedTuple):
    """An entry less another one in a scenario."""

    first: str
    second: str
    scenario: str
    difference: Difference


def compare_pairs(suite: Suite, values: Mapping[str, Mapping[str, Values]]) -> list[Compared]:
    """The differences of those pairs of which both have played, corrected for their number; `values[entry][scenario]`."""
    pairs = [
        (first, second, scenario)
        for first, second in suite.pairs
        for scenario in suite.scenarios
        if _can_be_paired(values, first, second, scenario)
    ]
    found = [
        compare_scenarios({scenario: values[first][scenario]}, {scenario: values[second][scenario]})
        for first, second, scenario in pairs
    ]
    return [Compared(*pair, one) for pair, one in zip(pairs, correct_for_many(found), strict=True)]


def _can_be_paired(values: Mapping[str, Mapping[str, Values]], first: str, second: str, scenario: str) -> bool:
    tables = [values.get(name, {}).get(scenario) for name in (first, second)]
    return (
        all(table is not None for table in tables) and len({table.shape for table in tables if table is not None}) == 1
    )


def judge(difference: Difference, smallest: float) -> str:
    """What a difference shows: a direction, or that it is smaller than what counts, or neither.

    >>> judge(Difference(0.1, 0.05, 0.15, 0.001, 0.002), 0.04), judge(Difference(0.0, -0.02, 0.03, 0.9, 1.0), 0.04)
    ('above', 'less than 4 points apart')
    """
    if difference.adjusted < LEVEL:
        return "above" if difference.mean > 0 else "below"
    if smallest and -smallest < difference.low and difference.high < smallest:
        return f"less than {100 * smallest:g} points apart"
    return "not decided"
