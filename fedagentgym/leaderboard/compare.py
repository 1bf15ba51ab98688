"""`fedagentgym compare`: which entry is better, by how much, and with which confidence.

It compares episodes: the ranked ones of a run, or those of its last evaluation; of the runs of several seeds (`train --seeds`),
of a result, of an evaluation, or of a file. Agents that were not trained are compared over tasks. Methods are compared over their
runs, paired by seed: from `FEWEST_REPLICATES` seeds on with intervals and tests; a single run each has intervals over tasks,
which are about these two policies only. p-values are corrected for the number of comparisons (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import format_path
from fedagentgym.base.rounding import format_fixed, subtract_shown
from fedagentgym.base.statistics import (
    FEWEST_REPLICATES,
    Difference,
    Values,
    compare_replicates,
    compare_tasks,
    correct,
    mean,
)
from fedagentgym.leaderboard.measures import average_runs, estimate_spread, estimate_tasks
from fedagentgym.leaderboard.metrics import Interval
from fedagentgym.leaderboard.results import ENTRY, Result
from fedagentgym.learning.episodes import group_by_task, read_lines
from fedagentgym.learning.evaluation import is_share, tabulate_measures
from fedagentgym.learning.trajectory import Group, Trajectory
from fedagentgym.runs.archive import is_archive
from fedagentgym.runs.folder import RunFolder, find_runs
from fedagentgym.runs.record import CurvePoint

MEASURES = ("success", "score", "invalid", "turns", "tokens")
Tasks = dict[str, Group]


@dataclass(frozen=True)
class Played:
    """The episodes of one entry: by scenario and seed, those of each task. `trained` says whether the seeds are training runs;
    `path` is where the episodes were read, if they were."""

    name: str
    episodes: Mapping[tuple[str, int], Tasks]
    trained: bool = False
    path: Path | None = None


@dataclass(frozen=True)
class Part:
    """Some of the tasks: what every entry reaches there, and its difference to the first entry."""

    tasks: int
    measured: Mapping[str, Interval]
    differences: Mapping[str, Difference]


@dataclass(frozen=True)
class Comparison:
    """Every entry with its intervals, and the differences to the first; `pairing` describes how they are paired, and `runs` is
    the number of training runs that are compared of each, 0 if nothing was trained. `values` are the runs' own numbers.

    `scenarios` and `categories` are the same comparison on parts of the tasks. The p-values of each of the two are corrected
    for the number of comparisons in it.
    """

    measure: str
    names: tuple[str, ...]
    measured: Mapping[str, Mapping[str, Interval]]
    differences: Mapping[str, Difference]
    pairing: str
    runs: int
    values: Mapping[str, tuple[float, ...]]
    scenarios: Mapping[str, Part]
    categories: Mapping[str, Part]
    seeds: Mapping[str, tuple[int, ...]]
    paths: Mapping[str, Path]


def is_result(path: Path) -> bool:
    """True if a path holds a result of a suite."""
    return is_archive(path) or (path / ENTRY).is_file()


def load_played(path: Path, name: str | None = None) -> Played:
    """The episodes of a run, of runs of several seeds, of a result, or of a file."""
    if is_result(path):
        result = Result(path)
        indexed = {key: {group[0].task: group for group in result.read_groups(key)} for key in result.keys}
        return Played(name or result.entry.title, indexed, result.suite.track == "methods", path)
    if path.is_file():
        return Played(name or path.name, _by_set(path, 0), False, path)
    runs = find_runs(path)
    if not runs:
        raise DataError(f"{format_path(path)} is not a run, a folder of runs, a result or a file of episodes")
    found: dict[tuple[str, int], Tasks] = {}
    for run in runs:
        if (episodes := run.find_episodes()) is None:
            raise DataError(f"{format_path(run.path)} is a run without an evaluation")
        more = _by_set(episodes, _find_seed(run))
        if double := next((key for key in more if key in found), None):
            problem = f"two of its runs have the seed {double[1]}: compare them by themselves"
            raise DataError(f"{format_path(path)}: {problem}")
        found |= more
    return Played(name or path.name, found, any("partition" in run.config for run in runs), path)


def _find_seed(run: RunFolder) -> int:
    """The seed of a training run; evaluations of one agent are not distinguished by theirs."""
    seed = run.config.get("seed")
    if "partition" not in run.config:
        return 0
    if not isinstance(seed, int):
        raise DataError(f"{format_path(run.path)}: seed is a whole number")
    return seed


def _by_set(file: Path, seed: int) -> dict[tuple[str, int], Tasks]:
    by_set: dict[str, list[Trajectory]] = {}
    for line in read_lines(file):
        by_set.setdefault(str(line.about.get("set", "")), []).append(line.trajectory)
    return {
        (name, seed): {group[0].task: group for group in group_by_task(episodes)} for name, episodes in by_set.items()
    }


def compare(played: Sequence[Played], measure: str = "success") -> Comparison:
    """Every entry, and its difference to the first."""
    if len(played) < 2:
        raise OptionError("name at least two runs to compare")
    if measure not in MEASURES:
        raise OptionError(f"the measure is one of {', '.join(MEASURES)}, got {measure!r}")
    names = _name_apart([one.name for one in played])
    tasks = find_common_tasks(played)
    runs, kept = _pair_seeds(played, list(tasks))
    tables = [
        {scenario: tabulate(one, scenario, common, seeds) for scenario, common in tasks.items()}
        for one, seeds in zip(played, kept, strict=True)
    ]
    picked = [_pick(table, MEASURES.index(measure)) for table in tables]
    comparing = _Comparing(measure, runs)
    raw = [comparing.compare(one, picked[0]) for one in picked[1:]]
    return Comparison(
        measure,
        tuple(names),
        {
            name: {each: _Comparing(each, runs).estimate(_pick(table, place)) for place, each in enumerate(MEASURES)}
            for name, table in zip(names, tables, strict=True)
        },
        dict(zip(names[1:], correct(raw), strict=True)),
        f"paired on {sum(map(len, tasks.values()))} tasks; {_tell_runs(runs)}",
        runs,
        {name: tuple(average_runs(values)) for name, values in zip(names, picked, strict=True)} if runs else {},
        _compare_parts(names, picked, {name: {name: list(range(len(ids)))} for name, ids in tasks.items()}, comparing),
        _compare_parts(names, picked, _find_categories(played[0], tasks), comparing),
        {name: tuple(seeds) for name, seeds in zip(names, kept, strict=True)},
        {name: one.path for name, one in zip(names, played, strict=True) if one.path is not None},
    )


def _pair_seeds(played: Sequence[Played], scenarios: Sequence[str]) -> tuple[int, list[list[int]]]:
    """The number of runs of each entry that are compared (0: nothing was trained), and the seeds of each entry.

    Entries with one run each are compared whatever their seeds; of several runs those count whose seed all entries have.
    """
    seeds = [_list_seeds(one, scenarios) for one in played]
    if not any(one.trained for one in played):
        return 0, seeds
    if all(len(each) == 1 for each in seeds):
        return 1, seeds
    common = [seed for seed in seeds[0] if all(seed in each for each in seeds)]
    if not common:
        raise DataError("these have no seed in common: runs are compared seed by seed")
    return len(common), [common for _ in played]


def _tell_runs(runs: int) -> str:
    if runs == 0:
        return "intervals are about other tasks"
    if runs == 1:
        return "one run each: intervals are about these policies on other tasks, not about other runs"
    if runs < FEWEST_REPLICATES:
        return f"{runs} runs each, paired by seed: fewer than {FEWEST_REPLICATES} have no interval and no p"
    return f"{runs} runs each, paired by seed: intervals are about other runs"


@dataclass(frozen=True)
class _Comparing:
    """The comparison of one measure, from `values[seed, task]` of each scenario."""

    measure: str
    runs: int

    def compare(self, first: Mapping[str, Values], second: Mapping[str, Values]) -> Difference:
        paired = [first[name].mean(axis=0) - second[name].mean(axis=0) for name in first]
        if self.runs > 1:
            means = zip(average_runs(first), average_runs(second), strict=True)
            return compare_replicates([one - other for one, other in means])
        found = compare_tasks(paired, bounded=is_share(self.measure))
        return found if self.runs == 0 else replace(found, p=None, adjusted=None)

    def estimate(self, values: Mapping[str, Values]) -> Interval:
        if self.runs > 1:
            return estimate_spread(average_runs(values))
        strata = [table.mean(axis=0)[:, None] for table in values.values()]
        return estimate_tasks([self.measure], strata)[self.measure]


Places = Mapping[str, list[int]]
"""Some tasks, by scenario: their places among the common tasks."""


def _find_categories(played: Played, tasks: Mapping[str, list[str]]) -> dict[str, Places]:
    """The common tasks by category; a category that several scenarios have is one."""
    found: dict[str, dict[str, list[int]]] = {}
    for scenario, common in tasks.items():
        groups = played.episodes[scenario, _list_seeds(played, [scenario])[0]]
        for number, task in enumerate(common):
            found.setdefault(groups[task][0].category, {}).setdefault(scenario, []).append(number)
    return dict(sorted(found.items()))


def _compare_parts(
    names: Sequence[str], tables: Sequence[Mapping[str, Values]], parts: Mapping[str, Places], comparing: _Comparing
) -> dict[str, Part]:
    """The comparison on each part. Nothing if there is only one, which is the whole."""
    if len(parts) < 2:
        return {}
    cut = {
        part: [{scenario: table[scenario][:, numbers] for scenario, numbers in places.items()} for table in tables]
        for part, places in parts.items()
    }
    raw = [comparing.compare(one, each[0]) for each in cut.values() for one in each[1:]]
    corrected = iter(correct(raw))
    return {
        part: Part(
            sum(map(len, parts[part].values())),
            {name: comparing.estimate(one) for name, one in zip(names, each, strict=True)},
            {name: next(corrected) for name in names[1:]},
        )
        for part, each in cut.items()
    }


def _pick(table: Mapping[str, Values], place: int) -> dict[str, Values]:
    return {scenario: values[:, :, place] for scenario, values in table.items()}


def _name_apart(names: Sequence[str]) -> list[str]:
    """Unique names: repeated ones get a number."""
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _list_seeds(played: Played, scenarios: Sequence[str]) -> list[int]:
    """The seeds under which all of these scenarios were played."""
    found = [{seed for name, seed in played.episodes if name == scenario} for scenario in scenarios]
    return sorted(set.intersection(*found))


def find_common_tasks(played: Sequence[Played]) -> dict[str, list[str]]:
    """The tasks that all entries played, by scenario."""
    scenarios = dict.fromkeys(name for name, _ in played[0].episodes)
    found = {}
    for scenario in scenarios:
        cells = [[tasks for (name, _), tasks in one.episodes.items() if name == scenario] for one in played]
        each = [tasks for own in cells for tasks in own]
        common = [task for task in each[0] if all(task in tasks for tasks in each)]
        if common and all(cells):
            found[scenario] = common
    if not found:
        raise DataError("these have no task in common: only episodes of the same tasks can be compared")
    return found


def tabulate(played: Played, scenario: str, tasks: Sequence[str], seeds: Sequence[int]) -> Values:
    """`values[seed, task, measure]`, repeats averaged."""
    rows = []
    for seed in seeds:
        names, values = tabulate_measures([played.episodes[scenario, seed][task] for task in tasks])
        rows.append(values[:, [names.index(name) for name in MEASURES]])
    return np.stack(rows)


def format_numbers(found: Interval | Difference, values: Sequence[float], sign: str = "") -> str:
    """A mean with its interval, or with the runs' own values."""
    mean = format_fixed(found.mean, 3, sign)
    own = ", ".join(format_fixed(value, 3, sign) for value in found.ends or values)
    if found.ends is not None:
        return f"{mean} [{own}]"
    return f"{mean} ({own})" if own else mean


def align_differences(found: Comparison) -> Comparison:
    """The comparison as it is shown: with the differences of the numbers that stand beside them, in thousandths."""

    def align(part: Comparison | Part) -> dict[str, Difference]:
        measured = {
            name: one if isinstance(one, Interval) else one[found.measure] for name, one in part.measured.items()
        }
        first = measured[found.names[0]].mean
        return {
            name: replace(one, mean=subtract_shown(measured[name].mean, first, 3, one.mean))
            for name, one in part.differences.items()
        }

    parts = [
        {name: replace(part, differences=align(part)) for name, part in each.items()}
        for each in (found.scenarios, found.categories)
    ]
    return replace(found, differences=align(found), scenarios=parts[0], categories=parts[1])


def format_p(p: float | None) -> str:
    """A p-value; nothing if there are too few runs for one.

    >>> format_p(0.03), format_p(1e-9), format_p(None)
    ('0.0300', '< 0.0001', '')
    """
    if p is None:
        return ""
    return "< 0.0001" if p < 0.0001 else format_fixed(p, 4)


# ---- learning curves -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearningCurve:
    """The evaluated rounds of one run; a run that is not a cell of a suite has no scenario."""

    scenario: str
    points: tuple[CurvePoint, ...]


class MeanPoint(NamedTuple):
    """A round in the mean over runs. `low` and `high` are the lowest and the highest run, of a single one its interval."""

    round: int
    episodes: float
    bytes: float
    mean: float
    low: float
    high: float


def read_learning_curves(path: Path) -> tuple[LearningCurve, ...]:
    """The curves that are recorded in a run, a folder of runs or a result; none for a file, or a run that is not finished."""
    if is_result(path):
        return tuple(
            LearningCurve(key[0], record.curve) for key, record in Result(path).records.items() if record.curve
        )
    found = [run.record.curve for run in ([] if path.is_file() else find_runs(path)) if run.is_finished]
    return tuple(LearningCurve("", curve) for curve in found if curve)


def average_curves(curves: Sequence[Sequence[CurvePoint]], measure: str = "success") -> list[MeanPoint]:
    """The mean over curves in the rounds that all of them evaluated; nothing if the measure was not recorded."""
    by_round = [{point.round: point for point in curve if measure in point.overall} for curve in curves]
    common = set.intersection(*(set(one) for one in by_round)) if by_round else set()
    found = []
    for number in sorted(common):
        points = [one[number] for one in by_round]
        reached = [point.overall[measure] for point in points]
        values = [one["mean"] for one in reached]
        low, high = (reached[0]["low"], reached[0]["high"]) if len(reached) == 1 else (min(values), max(values))
        episodes = mean([float(point.spent.episodes) for point in points])
        sent = mean([float(point.spent.bytes) for point in points])
        found.append(MeanPoint(number, episodes, sent, mean(values), low, high))
    return found
