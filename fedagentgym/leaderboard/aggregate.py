"""Numbers from episodes: the measures of a cell, of a scenario, and of a whole entry.

Everything here follows from episodes and counts alone; `pack` writes with it and `verify` checks with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.numbers import mean
from fedagentgym.leaderboard.intervals import Values, estimate_scenario, estimate_suite
from fedagentgym.leaderboard.record import CellRecord, ClientRecord, CurvePoint, Interval, Measures, Spent, Usage
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.learning.evaluation import tabulate_measures
from fedagentgym.learning.trajectory import Group

UNIFORM = 0.0
"""The level of a scenario with a uniform division of tasks."""
ON_CURVE = ("success", "score")


@dataclass(frozen=True)
class CellData:
    """The data of a cell: its ranked episodes, grouped by task, and further counts."""

    scenario: str
    seed: int
    groups: tuple[Group, ...]
    spent: Spent
    points: tuple[CurvePoint, ...] = ()
    clients: tuple[ClientRecord, ...] = ()
    policy: str | None = None
    config: str | None = None
    usage: Usage | None = None
    epsilon: float | None = None


def describe_cell(suite: Suite, data: CellData) -> CellRecord:
    """The record of a cell."""
    by_category: dict[str, list[Group]] = {}
    for group in data.groups:
        by_category.setdefault(group[0].category, []).append(group)
    return CellRecord(
        scenario=data.scenario,
        seed=data.seed,
        episodes=sum(len(group) for group in data.groups),
        measures={**_estimate_cell(suite, data.groups, data.scenario), **_fix(measure_run(suite, data))},
        categories={
            category: _estimate_cell(suite, members, f"{data.scenario}/{category}")
            for category, members in sorted(by_category.items())
        },
        spent=data.spent,
        policy=data.policy,
        config=data.config,
        chosen_round=choose_round(data.points) if data.points else None,
        usage=data.usage,
        epsilon=data.epsilon,
    )


def _estimate_cell(suite: Suite, groups: Sequence[Group], name: str) -> Measures:
    names, values = tabulate_tasks(suite, groups)
    return estimate_scenario(names, values[None], name)


def _fix(numbers: Mapping[str, float]) -> Measures:
    """Numbers of a single run, which have no interval of their own."""
    return {name: Interval(mean=value, low=value, high=value) for name, value in numbers.items()}


# ---- one cell ---------------------------------------------------------------------------------------------------------


def tabulate_tasks(suite: Suite, groups: Sequence[Group]) -> tuple[list[str], Values]:
    """The names of the measures of episodes, and the numbers: by task, measure. Repeats are averaged, except for pass^k."""
    names, values = tabulate_measures(groups)
    solved = np.array([[trajectory.success for trajectory in group] for group in groups], np.float64)
    powers = [find_pass_power(solved, power)[:, None] for power in suite.pass_powers]
    table: Values = np.concatenate([values.mean(axis=1), *powers], axis=1)
    return [*names, *(f"pass^{power}" for power in suite.pass_powers)], table


def find_pass_power(solved: NDArray[np.float64], power: int) -> Values:
    """For each task, the chance that `power` of its episodes, drawn without replacement, are all solved."""
    repeats = solved.shape[1]
    return np.array([math.comb(int(row.sum()), power) / math.comb(repeats, power) for row in solved], np.float64)


def make_point(round_number: int, groups: Sequence[Group], spent: Spent) -> CurvePoint:
    """An evaluated round of a run."""
    names, values = tabulate_measures(groups)
    kept = [names.index(name) for name in ON_CURVE]
    solved: dict[str, list[float]] = {}
    for group in groups:
        solved.setdefault(group[0].category, []).append(mean([float(one.success) for one in group]))
    return CurvePoint(
        round=round_number,
        spent=spent,
        measures=estimate_scenario(ON_CURVE, values.mean(axis=1)[None][:, :, kept], "curve"),
        categories={category: mean(shares) for category, shares in sorted(solved.items())},
    )


def choose_round(points: Sequence[CurvePoint]) -> int:
    """The evaluated round with the highest success on `val`, the earliest of equals."""
    return max(points, key=lambda point: (point.measures["success"].mean, -point.round)).round


def measure_run(suite: Suite, data: CellData) -> dict[str, float]:
    """Measures of a whole cell rather than of its episodes."""
    found: dict[str, float] = {}
    if data.clients:
        found |= measure_clients(data.clients, mean([float(one.success) for group in data.groups for one in group]))
    if data.points:
        found |= measure_curve(suite, data.points)
        found["bytes"] = float(data.spent.bytes_down + data.spent.bytes_up)
    if data.usage is not None:
        episodes = sum(len(group) for group in data.groups)
        for name in ("prompt_tokens", "reply_tokens", "cost"):
            found[name] = float(getattr(data.usage, name)) / episodes
    if data.epsilon is not None:
        found["epsilon"] = data.epsilon
    return found


def measure_clients(clients: Sequence[ClientRecord], overall: float) -> dict[str, float]:
    """The worst client, the 10th percentile, and the clients' mean on their own mixtures minus that on all tasks."""
    own = [client.success for client in clients if client.success is not None]
    if not own:
        return {}
    return {
        "worst_client": min(own),
        "client_p10": float(np.percentile(own, 10)),
        "own_gap": mean(own) - overall,
    }


def measure_curve(suite: Suite, points: Sequence[CurvePoint]) -> dict[str, float]:
    """Area, forgetting, and the cost of reaching the target."""
    found = {"area": find_area(points, suite.budget.episodes), "forgetting": find_forgetting(points)}
    if suite.target is None:
        return found
    reached = next((point for point in points if point.measures["success"].mean >= suite.target), None)
    found["reached_target"] = float(reached is not None)
    if reached is not None:
        found["rounds_to_target"] = float(reached.round)
        found["bytes_to_target"] = float(reached.spent.bytes_down + reached.spent.bytes_up)
    return found


def find_area(points: Sequence[CurvePoint], budget: int | None) -> float:
    """The mean success on `val` over the training episodes of the budget; constant after the last point."""
    last = points[-1]
    end = float(max(budget or 0, last.spent.episodes))
    if not end:
        return last.measures["success"].mean
    area = 0.0
    for before, after in pairwise(points):
        width = after.spent.episodes - before.spent.episodes
        area += width * (before.measures["success"].mean + after.measures["success"].mean) / 2
    area += (end - last.spent.episodes) * last.measures["success"].mean
    return area / end


def find_forgetting(points: Sequence[CurvePoint]) -> float:
    """How far the success in a category fell from its best to the end; mean over categories."""
    last = points[-1].categories
    falls = [max(point.categories.get(category, 0.0) for point in points) - last[category] for category in last]
    return mean(falls)


# ---- an entry ---------------------------------------------------------------------------------------------------------


def collect_values(suite: Suite, cells: Sequence[CellData]) -> tuple[list[str], dict[str, Values]]:
    """The measures that all cells have, and `values[seed, task, measure]` of each scenario, in the order of the suite.

    A measure of a whole cell is repeated for each of its tasks, so that its interval is that over seeds.
    """
    tables: dict[tuple[str, int], tuple[list[str], Values]] = {}
    for data in cells:
        names, values = tabulate_tasks(suite, data.groups)
        run = measure_run(suite, data)
        constant = np.broadcast_to(np.array(list(run.values()), np.float64), (len(values), len(run)))
        tables[data.scenario, data.seed] = ([*names, *run], np.concatenate([values, constant], axis=1))
    first = next(iter(tables.values()))[0]
    common = [name for name in first if all(name in names for names, _ in tables.values())]
    scenarios: dict[str, Values] = {}
    for scenario in suite.scenarios:
        rows = [tables[scenario, seed] for seed in suite.seeds if (scenario, seed) in tables]
        if rows:
            scenarios[scenario] = np.stack([table[:, [names.index(name) for name in common]] for names, table in rows])
    return common, scenarios


def aggregate(suite: Suite, cells: Sequence[CellData]) -> tuple[Measures, dict[str, Measures]]:
    """The measures over all scenarios, and those of each: a target may be reached in one and not in another."""
    names, scenarios = collect_values(suite, cells)
    by_scenario = {
        name: _estimate_alone(suite, [cell for cell in cells if cell.scenario == name]) for name in scenarios
    }
    return estimate_suite(names, scenarios), add_uniform_loss(suite, names, scenarios, by_scenario)


def _estimate_alone(suite: Suite, cells: Sequence[CellData]) -> Measures:
    """The measures of the cells of one scenario."""
    names, scenarios = collect_values(suite, cells)
    ((name, values),) = scenarios.items()
    return estimate_scenario(names, values, name)


def add_uniform_loss(
    suite: Suite, names: Sequence[str], values: Mapping[str, Values], found: Mapping[str, Measures]
) -> dict[str, Measures]:
    """The loss of each scenario of an axis against the one with the uniform division, on the same tasks and seeds."""
    place = list(names).index("success")
    even = {one.axis: name for name, one in suite.scenarios.items() if one.axis and one.level == UNIFORM}
    completed = {}
    for name, measures in found.items():
        axis = suite.scenarios[name].axis
        base = None if axis is None else even.get(axis)
        added: Measures = {}
        if base is not None and base != name and values[base].shape == values[name].shape:
            loss = (values[base] - values[name])[:, :, [place]]
            added = estimate_scenario(["uniform_loss"], loss, name)
        completed[name] = {**measures, **added}
    return completed
