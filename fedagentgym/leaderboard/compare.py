"""`fedagentgym compare`: which entry is better, by how much, and with which confidence.

It compares episodes: of a run's last evaluation, of the runs of several seeds (`train --seeds`), of a packed result, or of a file
of `fedagentgym eval`. Differences are paired by task and seed if both have them, so that the difficulty of tasks does not count
as noise; p-values are corrected for the number of comparisons (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import format_path
from fedagentgym.leaderboard.intervals import (
    Difference,
    Values,
    compare_scenarios,
    correct_for_many,
    estimate_suite,
)
from fedagentgym.leaderboard.pack import group_by_task
from fedagentgym.leaderboard.record import EPISODES, MANIFEST, Interval, read_manifest
from fedagentgym.learning.evaluation import tabulate_measures
from fedagentgym.learning.export import read_json_lines
from fedagentgym.learning.trajectory import Group, Trajectory

MEASURES = ("success", "score", "invalid", "turns", "tokens")
Tasks = dict[str, Group]


@dataclass(frozen=True)
class Played:
    """The episodes of one entry: by scenario and seed, those of each task. `path` is where they were read, if they were."""

    name: str
    episodes: Mapping[tuple[str, int], Tasks]
    path: Path | None = None


@dataclass(frozen=True)
class Part:
    """Some of the tasks: what every entry reaches there, and its difference to the first entry."""

    tasks: int
    measured: Mapping[str, Interval]
    differences: Mapping[str, Difference]


@dataclass(frozen=True)
class Comparison:
    """Every entry with its intervals, and the differences to the first; `pairing` describes how they are paired.

    `scenarios` and `categories` are the same comparison on parts of the tasks. The p-values of each of the two are corrected
    for the number of comparisons in it.
    """

    measure: str
    names: tuple[str, ...]
    measured: Mapping[str, Mapping[str, Interval]]
    differences: Mapping[str, Difference]
    pairing: str
    scenarios: Mapping[str, Part]
    categories: Mapping[str, Part]
    seeds: Mapping[str, tuple[int, ...]]
    paths: Mapping[str, Path]


def load_played(path: Path, name: str | None = None) -> Played:
    """The episodes of a run, of runs of several seeds, of a packed result, or of a file."""
    called = name or path.name
    if (path / MANIFEST).is_file():
        return Played(name or read_manifest(path).entry.title, _read_result(path), path)
    if path.is_file():
        return Played(called, _by_set(path, 0), path)
    runs = list_runs(path)
    if not runs:
        raise DataError(f"{format_path(path)} is not a run, a folder of runs, a packed result or a file of episodes")
    found: dict[tuple[str, int], Tasks] = {}
    for run in runs:
        more = _read_run(run)
        if double := next((key for key in more if key in found), None):
            raise DataError(
                f"{format_path(path)}: two of its runs have the seed {double[1]}: compare them by themselves"
            )
        found |= more
    return Played(called, found, path)


def list_runs(path: Path) -> list[Path]:
    """A run itself, or the runs in a folder."""
    if (path / "config.yaml").is_file():
        return [path]
    return sorted(place.parent for place in path.glob("*/config.yaml"))


def _read_result(folder: Path) -> dict[tuple[str, int], Tasks]:
    cells = read_manifest(folder).cells
    return {
        (cell.scenario, cell.seed): _index(read_json_lines(folder / EPISODES / f"{cell.key}.jsonl.gz"))
        for cell in cells
    }


def _read_run(folder: Path) -> dict[tuple[str, int], Tasks]:
    """The last evaluation of a run."""
    from fedagentgym.experiment.config import load_config

    files = sorted((folder / "evaluation").glob("*.jsonl"))
    if not files:
        raise DataError(f"{format_path(folder)} is a run without an evaluation")
    return _by_set(files[-1], load_config(folder / "config.yaml").seed)


def _by_set(file: Path, seed: int) -> dict[tuple[str, int], Tasks]:
    by_set: dict[str, list[tuple[Trajectory, dict[str, object]]]] = {}
    for trajectory, about in read_json_lines(file):
        by_set.setdefault(str(about.get("set", "")), []).append((trajectory, about))
    return {(name, seed): _index(lines) for name, lines in by_set.items()}


def _index(lines: object) -> Tasks:
    trajectories = [trajectory for trajectory, _ in lines]  # type: ignore[attr-defined]
    return {group[0].task: group for group in group_by_task(trajectories)}


def compare(played: Sequence[Played], measure: str = "success") -> Comparison:
    """Every entry, and its difference to the first."""
    if len(played) < 2:
        raise OptionError("name at least two runs to compare")
    if measure not in MEASURES:
        raise OptionError(f"the measure is one of {', '.join(MEASURES)}, got {measure!r}")
    names = _name_apart([one.name for one in played])
    tasks = find_common_tasks(played)
    seeds = {scenario: [set(_list_seeds(one, scenario)) for one in played] for scenario in tasks}
    paired = all(each == found[0] for found in seeds.values() for each in found)
    tables = [
        {scenario: tabulate(one, scenario, common, average=not paired) for scenario, common in tasks.items()}
        for one in played
    ]
    place = MEASURES.index(measure)
    picked = [_pick(table, place) for table in tables]
    raw = [compare_scenarios(one, picked[0]) for one in picked[1:]]
    count = sum(map(len, tasks.values()))
    same = (
        "the same seeds" if paired else "means over seeds, since the seeds differ: intervals do not cover other seeds"
    )
    return Comparison(
        measure,
        tuple(names),
        {name: estimate_suite(MEASURES, table) for name, table in zip(names, tables, strict=True)},
        dict(zip(names[1:], correct_for_many(raw), strict=True)),
        f"paired on {count} tasks; {same}",
        _compare_parts(names, picked, _find_scenarios(tasks)),
        _compare_parts(names, picked, _find_categories(played[0], tasks)),
        {name: tuple(sorted({seed for _, seed in one.episodes})) for name, one in zip(names, played, strict=True)},
        {name: one.path for name, one in zip(names, played, strict=True) if one.path is not None},
    )


Places = Mapping[str, list[int]]
"""Some tasks, by scenario: their places among the common tasks."""


def _find_scenarios(tasks: Mapping[str, list[str]]) -> dict[str, Places]:
    return {scenario: {scenario: list(range(len(common)))} for scenario, common in tasks.items()}


def _find_categories(played: Played, tasks: Mapping[str, list[str]]) -> dict[str, Places]:
    """The common tasks by category; a category that several scenarios have is one."""
    found: dict[str, dict[str, list[int]]] = {}
    for scenario, common in tasks.items():
        groups = played.episodes[scenario, _list_seeds(played, scenario)[0]]
        for number, task in enumerate(common):
            found.setdefault(groups[task][0].category, {}).setdefault(scenario, []).append(number)
    return dict(sorted(found.items()))


def _compare_parts(
    names: Sequence[str], tables: Sequence[Mapping[str, Values]], parts: Mapping[str, Places]
) -> dict[str, Part]:
    """The comparison on each part. Nothing if there is only one, which is the whole."""
    if len(parts) < 2:
        return {}
    cut = {
        part: [{scenario: table[scenario][:, numbers] for scenario, numbers in places.items()} for table in tables]
        for part, places in parts.items()
    }
    raw = [compare_scenarios(one, each[0]) for each in cut.values() for one in each[1:]]
    corrected = iter(correct_for_many(raw))
    return {
        part: Part(
            sum(map(len, parts[part].values())),
            {name: _estimate(one) for name, one in zip(names, each, strict=True)},
            {name: next(corrected) for name in names[1:]},
        )
        for part, each in cut.items()
    }


def _estimate(table: Mapping[str, Values]) -> Interval:
    return estimate_suite(["value"], {scenario: values[:, :, None] for scenario, values in table.items()})["value"]


def _pick(table: Mapping[str, Values], place: int) -> dict[str, Values]:
    return {scenario: values[:, :, place] for scenario, values in table.items()}


def _name_apart(names: Sequence[str]) -> list[str]:
    """Unique names: repeated ones get a number."""
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _list_seeds(played: Played, scenario: str) -> list[int]:
    return sorted(seed for name, seed in played.episodes if name == scenario)


def find_common_tasks(played: Sequence[Played]) -> dict[str, list[str]]:
    """The tasks that all entries played, by scenario."""
    scenarios = dict.fromkeys(name for name, _ in played[0].episodes)
    found = {}
    for scenario in scenarios:
        cells = [tasks for one in played for (name, _), tasks in one.episodes.items() if name == scenario]
        if all(any(name == scenario for name, _ in one.episodes) for one in played):
            common = [task for task in cells[0] if all(task in tasks for tasks in cells)]
            if common:
                found[scenario] = common
    if not found:
        raise DataError("these have no task in common: only episodes of the same tasks can be compared")
    return found


def tabulate(played: Played, scenario: str, tasks: Sequence[str], *, average: bool) -> Values:
    """`values[seed, task, measure]`, repeats averaged; with `average` the seeds too."""
    rows = []
    for seed in _list_seeds(played, scenario):
        groups = played.episodes[scenario, seed]
        means = []
        for task in tasks:
            names, values = tabulate_measures([groups[task]])
            means.append(values.mean(axis=(0, 1))[[names.index(name) for name in MEASURES]])
        rows.append(means)
    table: Values = np.array(rows, np.float64)
    return table.mean(axis=0, keepdims=True) if average else table
