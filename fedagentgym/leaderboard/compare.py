"""`fedagentgym compare`: which entry is better, by how much, and with which confidence.

It compares episodes of runs (the ranked episodes, or else those of the last evaluation), of runs of several seeds
(`train --seeds`), of results, evaluations or files. Agents that were not trained are compared over tasks. Methods are compared
over their runs, paired by seed, with intervals and tests from `MIN_REPLICATES` seeds on. If every method has a single run,
intervals are over tasks and hold for these policies only. p-values are corrected for the number of comparisons (Holm).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedagentgym.base.encoding import shorten_digest
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.files import format_path, get_name
from fedagentgym.base.rounding import format_fixed, subtract_shown
from fedagentgym.base.statistics import MIN_REPLICATES, Difference, correct, find_quartiles, mean
from fedagentgym.envs.make import open_env, read_options
from fedagentgym.envs.pool import TaskPool
from fedagentgym.leaderboard.metrics import METRICS, Interval
from fedagentgym.leaderboard.rank import (
    Scenarios,
    average_runs,
    compare_entries,
    estimate_spread,
    estimate_tasks,
    has_collapsed,
)
from fedagentgym.leaderboard.results import ENTRY, Result
from fedagentgym.learning.evaluation import tabulate_measures
from fedagentgym.learning.trajectory import Group, Trajectory, group_by_task, read_lines
from fedagentgym.runs.archive import is_archive
from fedagentgym.runs.folder import CONFIG, find_runs
from fedagentgym.runs.record import CurvePoint

NOT_COMPARED = ("name", "output")
"""Parts of a configuration that do not affect what is computed."""
MEASURES = ("success", "score", "invalid", "turns", "tokens")
STEPS = METRICS["optimizer_steps"]
Tasks = dict[str, Group]


Curve = Sequence[CurvePoint]
"""The evaluated rounds of one run."""


@dataclass(frozen=True)
class Played:
    """The episodes of one entry, by scenario and seed, then by task.

    `trained` says whether the seeds are training runs. `path` is the file or folder from which the episodes were read. `curves`
    are the recorded curves of finished runs, by scenario ("" for a run outside a suite) and seed.
    """

    name: str
    episodes: Mapping[tuple[str, int], Tasks]
    trained: bool = False
    path: Path | None = None
    curves: Mapping[tuple[str, int], Curve] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """The configuration of the first run; empty if the episodes are from a file."""
    worlds: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    """The recorded environment of each scenario and seed: `env`, `split`, `options`, and the digest of its `pool`."""


@dataclass(frozen=True)
class Part:
    """A subset of the tasks, with the measure of every entry on it and the differences to the first entry."""

    tasks: int
    measured: Mapping[str, Interval]
    differences: Mapping[str, Difference]


@dataclass(frozen=True)
class RunSpread:
    """The distribution of an entry's runs: the lowest, the quartiles and the highest, and how many of the runs with a recorded
    curve collapsed."""

    quartiles: tuple[float, float, float, float, float]
    collapsed: int
    curves: int

    def list_cells(self) -> tuple[str, ...]:
        """The numbers as a table shows them."""
        share = f"{self.collapsed} of {self.curves}" if self.curves else ""
        return (*(format_fixed(value, 3) for value in self.quartiles), share)


RUN_HEADS = ("lowest", "quarter", "median", "three quarters", "highest", "collapsed")


@dataclass(frozen=True)
class Comparison:
    """Every entry with its intervals, and the differences to the first entry.

    `pairing` describes the pairing of the entries, and what was left out because not every entry has it. `runs` is the number of
    compared training runs of each entry, 0 if nothing was trained. `values` has the measure of each run, and `spreads` its
    distribution if there are enough runs for an interval. `curves` are the recorded curves of the compared runs, by entry and
    scenario, and `steps` the mean number of their optimizer steps. `settings` are the settings in which the configurations
    differ, with the value of each entry. `scenarios` and `categories` are the same comparison on parts of the tasks; the p-values
    of the scenarios are corrected together, and so are those of the categories.
    """

    measure: str
    played: Mapping[str, Played]
    measured: Mapping[str, Mapping[str, Interval]]
    differences: Mapping[str, Difference]
    pairing: str
    runs: int
    values: Mapping[str, tuple[float, ...]]
    scenarios: Mapping[str, Part]
    categories: Mapping[str, Part]
    seeds: Mapping[str, tuple[int, ...]]
    spreads: Mapping[str, RunSpread]
    curves: Mapping[str, Mapping[str, Sequence[Curve]]]
    steps: Mapping[str, float]
    settings: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.played)


def is_result(path: Path) -> bool:
    """True if a path holds a result of a suite."""
    return is_archive(path) or (path / ENTRY).is_file()


def load_played(path: Path, name: str | None = None) -> Played:
    """Read the episodes of a run, of runs of several seeds, of a result, or of a file."""

    worlds: dict[tuple[str, int], Mapping[str, Any]] = {}

    def read_file(file: Path, seed: int) -> dict[tuple[str, int], Tasks]:
        """The episodes of a file by evaluation set and seed, then by task."""
        by_set: dict[str, list[Trajectory]] = {}
        for line in read_lines(file):
            of_set = str(line.about.get("set", ""))
            by_set.setdefault(of_set, []).append(line.trajectory)
            worlds.setdefault((of_set, seed), line.about)
        return {(each, seed): {one[0].task: one for one in group_by_task(own)} for each, own in by_set.items()}

    curves: dict[tuple[str, int], Curve] = {}
    if is_result(path):
        result = Result(path)
        indexed = {key: {group[0].task: group for group in result.read_groups(key)} for key in result.keys}
        for (scenario, number), record in result.records.items():
            if record.tasks is not None:
                own = {"env": record.env.id, "split": record.tasks.split, "options": record.env.options}
                worlds[scenario, number] = {**own, "pool": record.tasks.pool}
            if record.curve:
                curves[scenario, number] = record.curve
        if not result.keys:
            raise DataError(f"{format_path(path)} has no finished run")
        with result.open_run(result.keys[0], CONFIG) as first:
            config = first.config
        return Played(
            name or result.entry.title, indexed, result.suite.track == "methods", path, curves, config, worlds
        )
    if path.is_file():
        return Played(name or get_name(path), read_file(path, 0), False, path, worlds=worlds)
    runs = find_runs(path)
    if not runs:
        raise DataError(f"{format_path(path)} is not a run, a folder of runs, a result or a file of episodes")
    found: dict[tuple[str, int], Tasks] = {}
    for run in runs:
        if (episodes := run.find_episodes()) is None:
            raise DataError(f"{format_path(run.path)} is a run without an evaluation")
        # evaluations of one agent are not distinguished by their seeds
        seed = run.config.get("seed") if "partition" in run.config else 0
        if not isinstance(seed, int):
            raise DataError(f"{format_path(run.path)}: seed is a whole number")
        more = read_file(episodes, seed)
        if more.keys() & found.keys():
            problem = f"two of its runs have the seed {seed}: name the runs to compare one by one"
            raise DataError(f"{format_path(path)}: {problem}")
        found |= more
        if run.is_finished and run.record.curve:
            curves["", seed] = run.record.curve
    trained = any("partition" in run.config for run in runs)
    return Played(name or get_name(path), found, trained, path, curves, runs[0].config, worlds)


def compare(played: Sequence[Played], measure: str = "success") -> Comparison:
    """Compare every entry with the first one, on the tasks that all entries played."""
    if len(played) < 2:
        raise OptionError("name at least two runs to compare")
    if measure not in MEASURES:
        raise OptionError(f"the measure must be one of {', '.join(MEASURES)}, got {measure!r}")
    given = [one.name for one in played]
    names = [name if given.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(given, start=1)]
    entries = dict(zip(names, played, strict=True))
    tasks = _find_common_tasks(played)
    runs, paired = _pair_seeds(played, list(tasks))
    seeds = dict(zip(names, paired, strict=True))
    _check_pools(entries, tasks, seeds[names[0]] if runs > 1 else [None])
    tables = {name: _tabulate(one, tasks, seeds[name]) for name, one in entries.items()}
    picked = [tables[name][measure] for name in names]
    reached = {name: tuple(average_runs(tables[name][measure])) for name in names} if runs else {}
    curves = {name: _list_curves(one, list(tasks), seeds[name]) for name, one in entries.items()}
    left_out = {name: _describe_left_out(one, tasks, seeds[name]) for name, one in entries.items()}
    scenarios = {name: {name: list(range(len(ids)))} for name, ids in tasks.items()}
    categories = _group_by_category(played[0], tasks, seeds[names[0]])
    differences = correct([_compare(one, picked[0], measure, runs) for one in picked[1:]])
    return Comparison(
        measure=measure,
        played=entries,
        measured={name: {each: _estimate(tables[name][each], each, runs) for each in MEASURES} for name in names},
        differences=dict(zip(names[1:], differences, strict=True)),
        pairing=_describe_pairing(runs, sum(map(len, tasks.values())), left_out),
        runs=runs,
        values=reached,
        spreads={
            name: _describe_runs(reached[name], curves[name]) for name in (names if runs >= MIN_REPLICATES else ())
        },
        curves=curves,
        scenarios=_compare_parts(names, picked, scenarios, measure, runs),
        categories=_compare_parts(names, picked, categories, measure, runs),
        seeds={name: tuple(own) for name, own in seeds.items()},
        settings=list_differing([one.config for one in played]),
        steps={
            name: mean([float(curve[-1].spent.optimizer_steps) for own in curves[name].values() for curve in own])
            for name, one in entries.items()
            if one.trained and curves[name]
        },
    )


def _find_common_tasks(played: Sequence[Played]) -> dict[str, list[str]]:
    """The tasks that all entries played in all their runs, by scenario."""
    tasks: dict[str, list[str]] = {}
    for scenario in dict.fromkeys(name for name, _ in played[0].episodes):
        cells = [[own for (name, _), own in one.episodes.items() if name == scenario] for one in played]
        common = [task for task in cells[0][0] if all(task in own for each in cells for own in each)]
        if common and all(cells):
            tasks[scenario] = common
    if not tasks:
        raise DataError("these entries have no task in common: only episodes of the same tasks can be compared")
    return tasks


def _tabulate(one: Played, tasks: Mapping[str, Sequence[str]], seeds: Sequence[int]) -> dict[str, Scenarios]:
    """The values of an entry by measure and scenario, with a row for each seed and a column for each task."""
    values = {}
    for scenario, ids in tasks.items():
        several = [tabulate_measures([one.episodes[scenario, seed][task] for task in ids]) for seed in seeds]
        values[scenario] = np.stack([table[:, [known.index(each) for each in MEASURES]] for known, table in several])
    return {
        each: {scenario: table[:, :, place] for scenario, table in values.items()}
        for place, each in enumerate(MEASURES)
    }


def _group_by_category(
    one: Played, tasks: Mapping[str, Sequence[str]], seeds: Sequence[int]
) -> dict[str, dict[str, list[int]]]:
    """The numbers of the tasks of each category, by scenario. A category of several scenarios counts as one category."""
    categories: dict[str, dict[str, list[int]]] = {}
    for scenario, ids in tasks.items():
        first, *others = ([one.episodes[scenario, seed][task][0].category for task in ids] for seed in seeds)
        if any(other != first for other in others):
            continue  # tasks differ between seeds, and the same id can be in another category
        for number, category in enumerate(first):
            categories.setdefault(category, {}).setdefault(scenario, []).append(number)
    return dict(sorted(categories.items()))


def _describe_pairing(runs: int, tasks: int, left_out: Mapping[str, str]) -> str:
    if runs == 0:
        about = "intervals are about other tasks"
    elif runs == 1:
        about = "one run each: intervals are about these policies on other tasks, not about other runs"
    elif runs < MIN_REPLICATES:
        about = f"{runs} runs each, paired by seed: fewer than {MIN_REPLICATES} have no interval and no p"
    else:
        about = f"{runs} runs each, paired by seed: intervals are about other runs"
    told = "; ".join(f"{what} of {name}" for name, what in left_out.items() if what)
    rest = f". Left out, because not every entry has them: {told}" if told else ""
    return f"paired on {tasks} tasks; {about}{rest}"


def _describe_runs(reached: Sequence[float], curves: Mapping[str, Sequence[Curve]]) -> RunSpread:
    ends = [has_collapsed(curve) for own in curves.values() for curve in own]
    known = [end for end in ends if end is not None]
    return RunSpread(find_quartiles(reached), sum(known), len(known))


def _list_curves(one: Played, scenarios: Sequence[str], seeds: Sequence[int]) -> dict[str, list[Curve]]:
    """The curves of compared runs by scenario. A run outside a suite has one curve, whatever its evaluation set is called."""
    found: dict[str, list[Curve]] = {}
    for (scenario, seed), curve in one.curves.items():
        if seed in seeds and scenario in ("", *scenarios):
            found.setdefault(scenario, []).append(curve)
    return found


def _describe_left_out(one: Played, tasks: Mapping[str, Sequence[str]], seeds: Sequence[int]) -> str:
    """The numbers of scenarios, runs and tasks of an entry that are not compared, as text; empty if all are compared."""
    scenarios = {scenario for scenario, _ in one.episodes} - tasks.keys()
    runs = {seed for scenario, seed in one.episodes if scenario in tasks} - set(seeds)
    own = {(scenario, task) for (scenario, _), played in one.episodes.items() if scenario in tasks for task in played}
    counts = {"scenario": len(scenarios), "run": len(runs), "task": len(own) - sum(map(len, tasks.values()))}
    return ", ".join(f"{number} {noun}{'s' if number > 1 else ''}" for noun, number in counts.items() if number)


def _check_pools(played: Mapping[str, Played], tasks: Mapping[str, Sequence[str]], seeds: Sequence[int | None]) -> None:
    """Refuse entries whose tasks have the same ids but differ. Tasks need to be the same under one of the `seeds`, since runs are
    compared seed by seed and the tasks may differ between seeds; under None, all runs of all entries need the same tasks."""
    for (scenario, ids), seed in itertools.product(tasks.items(), seeds):
        pools: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for name, one in played.items():
            for (own, number), world in one.worlds.items():
                if own == scenario and seed in (None, number) and isinstance(digest := world.get("pool"), str):
                    pools.setdefault(digest, (name, world))
        (first, (name, world)), *others = pools.items() or [("", ("", {}))]
        for digest, (other, second) in others:
            if not _holds_same_tasks(world, second, ids):
                of_scenario = f" in {scenario}" if scenario else ""
                raise DataError(
                    f"{other} was played on the pool {shorten_digest(digest)}{of_scenario},"
                    f" {name} on the pool {shorten_digest(first)}: tasks with the same ids differ between these pools"
                )


def _holds_same_tasks(first: Mapping[str, Any], second: Mapping[str, Any], ids: Sequence[str]) -> bool:
    """Return whether two pools can be opened here from their recorded environments, and have the same payloads of these tasks."""
    try:
        one, other = _open_pool(first), _open_pool(second)
        return all(bool(one[task].payload == other[task].payload) for task in ids)
    except (FedAgentGymError, TypeError, ValueError):
        return False


def _open_pool(world: Mapping[str, Any]) -> TaskPool:
    options = read_options(world["env"], world.get("options") or {}).portable if "env" in world else {}
    env = open_env(world.get("env", ""), **options, split=world.get("split", "val"))
    if env.task_set.pool != world["pool"]:
        raise DataError("it is another pool")
    whole: TaskPool = env.whole_pool
    return whole


def list_differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The settings in which configurations differ, each with its values; empty if a configuration is unknown.

    >>> list_differing([{"seed": 0, "env": {"id": "A"}}, {"seed": 0, "env": {"id": "B"}}])
    {'env.id': ('A', 'B')}
    """
    if not all(configs):
        return {}
    flat = [_flatten({key: config[key] for key in config if key not in NOT_COMPARED}) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    values = {key: tuple(one.get(key, "") for one in flat) for key in keys}
    return {key: each for key, each in values.items() if len(set(each)) > 1}


def _flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The values of nested mappings by their keys, joined by dots."""
    found: dict[str, str] = {}
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            found |= _flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return found


def _pair_seeds(played: Sequence[Played], scenarios: Sequence[str]) -> tuple[int, list[list[int]]]:
    """The number of runs of each entry that are compared (0: nothing was trained), and the seeds of each entry.

    If every entry has one run, their seeds may differ. Otherwise only runs whose seed all entries have are compared.
    """
    seeds = [
        sorted(set.intersection(*({seed for name, seed in one.episodes if name == scenario} for scenario in scenarios)))
        for one in played
    ]
    if not all(seeds):
        raise DataError("an entry has no seed in common among its scenarios: runs are compared seed by seed")
    if not any(one.trained for one in played):
        return 0, seeds
    if all(len(each) == 1 for each in seeds):
        return 1, seeds
    common = [seed for seed in seeds[0] if all(seed in each for each in seeds)]
    if not common:
        raise DataError("these entries have no seed in common: runs are compared seed by seed")
    return len(common), [common for _ in played]


def _compare(first: Scenarios, second: Scenarios, measure: str, runs: int) -> Difference:
    found = compare_entries(first, second, measure, over_runs=runs > 1)
    return replace(found, p=None, adjusted=None) if runs == 1 else found


def _estimate(values: Scenarios, measure: str, runs: int) -> Interval:
    if runs > 1:
        return estimate_spread(average_runs(values))
    return estimate_tasks([measure], [table.mean(axis=0)[:, None] for table in values.values()])[measure]


def _compare_parts(
    names: Sequence[str],
    tables: Sequence[Scenarios],
    parts: Mapping[str, Mapping[str, list[int]]],
    measure: str,
    runs: int,
) -> dict[str, Part]:
    """The comparison on each part; `parts` has the indices of its tasks by scenario. Empty if there is only one part."""
    if len(parts) < 2:
        return {}
    cut = {
        part: [{scenario: table[scenario][:, numbers] for scenario, numbers in places.items()} for table in tables]
        for part, places in parts.items()
    }
    differences = iter(correct([_compare(one, each[0], measure, runs) for each in cut.values() for one in each[1:]]))
    return {
        part: Part(
            sum(map(len, parts[part].values())),
            {name: _estimate(one, measure, runs) for name, one in zip(names, each, strict=True)},
            {name: next(differences) for name in names[1:]},
        )
        for part, each in cut.items()
    }


def format_numbers(found: Interval | Difference, values: Sequence[float], sign: str = "") -> str:
    """A mean with its interval or, if there is none, with the values of the runs."""
    mean = format_fixed(found.mean, 3, sign)
    own = ", ".join(format_fixed(value, 3, sign) for value in found.ends or values)
    if found.ends is not None:
        return f"{mean} [{own}]"
    return f"{mean} ({own})" if own else mean


def align_differences(found: Comparison) -> Comparison:
    """The comparison for display: its differences are those of the displayed means, rounded to thousandths."""

    def align(measured: Mapping[str, Interval], differences: Mapping[str, Difference]) -> dict[str, Difference]:
        first = measured[found.names[0]].mean
        return {
            name: replace(one, mean=subtract_shown(measured[name].mean, first, 3, one.mean))
            for name, one in differences.items()
        }

    scenarios, categories = (
        {name: replace(part, differences=align(part.measured, part.differences)) for name, part in parts.items()}
        for parts in (found.scenarios, found.categories)
    )
    whole = align({name: each[found.measure] for name, each in found.measured.items()}, found.differences)
    return replace(found, differences=whole, scenarios=scenarios, categories=categories)


def format_p(p: float | None) -> str:
    """A p-value as text; empty if there is none.

    >>> format_p(0.03), format_p(1e-9), format_p(None)
    ('0.0300', '< 0.0001', '')
    """
    if p is None:
        return ""
    return "< 0.0001" if p < 0.0001 else format_fixed(p, 4)


# ---- learning curves -------------------------------------------------------------------------------------------------


class MeanPoint(NamedTuple):
    """A round in the mean over runs. `low` and `high` are the lowest and the highest run, or the interval of a single run."""

    round: int
    episodes: float
    bytes: float
    mean: float
    low: float
    high: float


def average_curves(curves: Sequence[Curve], measure: str = "success") -> list[MeanPoint]:
    """The mean over curves in the rounds that all of them evaluated; empty if the measure was not recorded."""
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
