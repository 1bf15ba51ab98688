"""The findings of a suite: its planned differences, what came out of its expectations, and its control, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.statistics import Difference, find_decidable, pool_spread
from fedagentgym.leaderboard.compare import format_p
from fedagentgym.leaderboard.rank import Compared, Control, find_outcome, read_compared
from fedagentgym.leaderboard.results import SuiteEntries
from fedagentgym.leaderboard.suite import Suite


def list_differences(found: SuiteEntries, differences: Iterable[Compared]) -> list[list[str]]:
    """The rows of the table of differences: two entries, a scenario, the difference, its interval, p, and what it shows."""
    titles = {entry.name: entry.entry.title for entry in found.entries}
    rows = []
    for first, second, scenario, one in differences:
        numbers = [format_fixed(100 * one.mean, 1, "+"), _format_ends(one), format_p(one.adjusted)]
        rows.append([titles[first], titles[second], scenario, *numbers, read_compared(found.suite, one)])
    return rows


def list_expected(suite: Suite, differences: Sequence[Compared]) -> list[str]:
    """Return what was expected, and what came out of it where it was tested."""
    lines = []
    for one in suite.expected:
        found = {} if isinstance(one, str) else find_outcome(one, differences)
        outcomes = ", ".join(f"{scenario}: {outcome}" for scenario, outcome in found.items())
        lines.append(f"{one} ({outcomes})" if outcomes else str(one))
    return lines


def describe_control(found: SuiteEntries, differences: Iterable[Compared], control: Control | None) -> list[str]:
    """The sentences of the suite's control and of what its seeds decide."""
    suite, sentences = found.suite, []
    if control is not None:
        titles = {entry.name: entry.entry.title for entry in found.entries}
        shown = "; ".join(
            f"{name} {format_fixed(100 * one.mean, 1, '+')} ({_format_ends(one)})"
            for name, one in control.differences.items()
        )
        sentences.append(
            f"{titles[control.first]} and {titles[control.second]} are one method under two random streams: {shown}."
        )
        if control.tests:
            counted = f"Of {control.tests} comparisons of their measures and categories {control.found} show a difference at 5 %"
            sentences.append(f"{counted}; by chance {control.tests / 20:g} would.")
    spread = pool_spread([one.difference.values for one in differences])
    decided = None if spread is None else find_decidable(spread, len(suite.seeds), max(1, len(suite.comparisons)))
    if suite.track == "methods" and spread is not None and decided is not None and math.isfinite(decided):
        stated = "" if suite.power is None else f", {format_fixed(100 * suite.power, 1)} were promised"
        sentences.append(
            f"Differences of two runs vary by {format_fixed(100 * spread, 1)} points (standard deviation), so that"
            f" {len(suite.seeds)} runs decide {format_fixed(100 * decided, 1)} points in four of five experiments{stated}."
        )
    return sentences


def _format_ends(found: Difference) -> str:
    """The interval, or the difference of every run."""
    if found.ends is None:
        return ", ".join(format_fixed(100 * value, 1, "+") for value in found.values)
    return " to ".join(format_fixed(100 * end, 1, "+") for end in found.ends)
