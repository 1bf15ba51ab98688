"""Numbers from episodes: the measures of a cell, of its clients, of a scenario, and of a whole entry.

Everything here follows from episodes and counts alone; `pack` writes with it and `verify` checks with it. Intervals of a cell are
about its policy on other tasks. On the agents track those of scenarios and entries are too; on the methods track they are about
other runs, and there are none below `FEWEST_REPLICATES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.algorithms.reports import count_categories, measure_mixture
from fedagentgym.base.statistics import Values, estimate_replicates, mean
from fedagentgym.federation.records import count_episodes, headline_bytes, sum_counts
from fedagentgym.leaderboard.record import CellRecord, ClientRecord, CurvePoint, Interval, Measures, Spent, Usage
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.learning.evaluation import estimate_measures, tabulate_measures
from fedagentgym.learning.trajectory import Group

if TYPE_CHECKING:
    from fedagentgym.partitions.client_split import ClientSplit

UNIFORM = 0.0
"""The level of a scenario with a uniform division of tasks."""
ON_CURVE = ("success", "score")


WorldGroups = tuple[tuple[int, ...], tuple[Group, ...]]
"""Clients whose world it is, and the ranked episodes there, grouped by task."""


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
    revision: str | None = None
    worlds: tuple[WorldGroups, ...] = ()

    @property
    def key(self) -> str:
        """The cell's name in file names."""
        return f"{self.scenario}-seed{self.seed}"


def describe_cell(suite: Suite, data: CellData) -> CellRecord:
    """The record of a cell."""
    return CellRecord(
        scenario=data.scenario,
        seed=data.seed,
        episodes=sum(len(group) for group in data.groups),
        measures={**_estimate_policy(suite, data.groups), **_fix(measure_run(suite, data))},
        categories=_describe_categories(suite, data.groups),
        spent=data.spent,
        policy=data.policy,
        config=data.config,
        chosen_round=choose_round(suite, data.points) if data.points else None,
        usage=data.usage,
        epsilon=data.epsilon,
        revision=data.revision,
    )


def _describe_categories(suite: Suite, groups: Sequence[Group]) -> dict[str, Measures]:
    if suite.track == "agents":
        return {name: _estimate_policy(suite, members) for name, members in group_by_category(groups).items()}
    return {name: _fix({"success": success}) for name, success in measure_categories(groups).items()}


def _estimate_policy(suite: Suite, groups: Sequence[Group]) -> Measures:
    names, values = tabulate_tasks(suite, groups)
    return estimate_tasks(names, [values])


def estimate_tasks(names: Sequence[str], strata: Sequence[Values]) -> Measures:
    """The measures of `values[task, measure]`, with intervals over tasks."""
    found = estimate_measures(names, strata)
    return {name: Interval(mean=one.mean, low=one.low, high=one.high) for name, one in found.items()}


def _fix(numbers: Mapping[str, float]) -> Measures:
    """Numbers of a single run, which have no interval of their own."""
    return {name: Interval(mean=value) for name, value in numbers.items()}


# ---- one cell ---------------------------------------------------------------------------------------------------------


def tabulate_tasks(suite: Suite, groups: Sequence[Group]) -> tuple[list[str], Values]:
    """The names of the measures of episodes, and the numbers: by task, measure. Repeats are averaged, except for pass^k."""
    names, values = tabulate_measures(groups)
    solved = np.array([[trajectory.success for trajectory in group] for group in groups], np.float64)
    powers = [find_pass_power(solved, power)[:, None] for power in suite.pass_powers]
    table: Values = np.concatenate([values, *powers], axis=1)
    return [*names, *(f"pass^{power}" for power in suite.pass_powers)], table


def find_pass_power(solved: NDArray[np.float64], power: int) -> Values:
    """For each task, the chance that `power` of its episodes, drawn without replacement, are all solved."""
    repeats = solved.shape[1]
    return np.array([math.comb(int(row.sum()), power) / math.comb(repeats, power) for row in solved], np.float64)


def make_point(round_number: int, groups: Sequence[Group], spent: Spent) -> CurvePoint:
    """An evaluated round of a run."""
    names, values = tabulate_measures(groups)
    return CurvePoint(
        round=round_number,
        spent=spent,
        measures=_fix({name: float(values[:, names.index(name)].mean()) for name in ON_CURVE}),
        categories=measure_categories(groups),
    )


def choose_round(suite: Suite, points: Sequence[CurvePoint]) -> int:
    """The round that is ranked: the last, or the one with the highest success on `val`, the earliest of equals."""
    if suite.ranked_round == "last":
        return points[-1].round
    return max(points, key=lambda point: (point.measures["success"].mean, -point.round)).round


def measure_run(suite: Suite, data: CellData) -> dict[str, float]:
    """Measures of a whole cell rather than of its episodes."""
    found: dict[str, float] = {}
    if data.clients:
        found |= measure_clients(data.clients, mean([float(one.success) for group in data.groups for one in group]))
    if data.worlds:
        found |= measure_worlds(data.worlds)
    if data.points:
        found |= measure_curve(suite, data.points)
        found["bytes"] = float(data.spent.bytes_down + data.spent.bytes_up)
        found |= measure_spent(data.spent)
    if data.usage is not None:
        episodes = sum(len(group) for group in data.groups)
        for name in ("prompt_tokens", "reply_tokens", "cost"):
            found[name] = float(getattr(data.usage, name)) / episodes
    if data.epsilon is not None:
        found["epsilon"] = data.epsilon
    return found


def measure_spent(spent: Spent) -> dict[str, float]:
    """Return what a run took, if everything was counted."""
    counts = [(name, getattr(spent, name)) for name in ("episodes", "optimizer_steps", "labelled", "looks")]
    return {} if any(value is None for _, value in counts) else {name: float(value) for name, value in counts}


def measure_clients(clients: Sequence[ClientRecord], overall: float) -> dict[str, float]:
    """The worst client, the 10th percentile, and the clients' mean on their own mixtures minus that on all tasks."""
    own = [client.success for client in clients if client.success is not None]
    if not own:
        return {}
    return {"worst_client": min(own), "client_p10": float(np.percentile(own, 10)), "own_gap": mean(own) - overall}


def measure_worlds(worlds: Sequence[WorldGroups]) -> dict[str, float]:
    """The success of the clients' policies in their own worlds: mean, worst client, 10th percentile."""
    own = [
        mean([float(one.success) for group in groups for one in group]) for clients, groups in worlds for _ in clients
    ]
    return {"own_world": mean(own), "own_world_worst": min(own), "own_world_p10": float(np.percentile(own, 10))}


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
    """The mean success on `val` over the episodes of the budget; constant before the first point, while a method prepares, and
    after the last."""
    first, last = points[0], points[-1]
    end = float(max(budget or 0, last.spent.episodes))
    if not end:
        return last.measures["success"].mean
    area = first.spent.episodes * first.measures["success"].mean
    for before, after in pairwise(points):
        width = after.spent.episodes - before.spent.episodes
        area += width * (before.measures["success"].mean + after.measures["success"].mean) / 2
    area += (end - last.spent.episodes) * last.measures["success"].mean
    return area / end


def find_forgetting(points: Sequence[CurvePoint]) -> float:
    """Return how far the success in a category fell from its best to the end; mean over categories."""
    last = points[-1].categories
    falls = [max(point.categories.get(category, 0.0) for point in points) - last[category] for category in last]
    return mean(falls)


def sum_spent(records: Sequence[Mapping[str, Any]], until: int) -> Spent:
    """The usage of a run up to and including a round, with all preparation before it."""
    kept = [record for record in records if record["round"] <= until]
    total = kept[-1]["bytes_total"]
    return Spent(
        rounds=until,
        episodes=count_episodes(kept),
        env_steps=sum_counts(kept, "env_steps"),
        bytes_down=headline_bytes(total, "down"),
        bytes_up=headline_bytes(total, "up"),
        optimizer_steps=sum_counts(kept, "optimizer_steps"),
        looks=sum("evaluation" in record for record in kept),
    )


# ---- clients -----------------------------------------------------------------------------------------------------------


def describe_clients(client_split: ClientSplit, groups: Sequence[Group]) -> tuple[ClientRecord, ...]:
    """Every client of a division: its tasks by category, and its success in these categories."""
    success = measure_categories(groups)
    names = client_split.table.names
    return tuple(
        describe_client(number, dict(zip(names, map(int, counts), strict=True)), success)
        for number, counts in enumerate(count_categories(client_split))
    )


def measure_categories(groups: Sequence[Group]) -> dict[str, float]:
    """The success in each category."""
    return {
        category: mean([mean([float(one.success) for one in group]) for group in members])
        for category, members in group_by_category(groups).items()
    }


def group_by_category(groups: Sequence[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group[0].category, []).append(group)
    return dict(sorted(found.items()))


def describe_client(number: int, counts: Mapping[str, int], success: Mapping[str, float]) -> ClientRecord:
    held = {category: count for category, count in counts.items() if count}
    total = sum(held.values())
    own, coverage = measure_mixture(held, success) if total else (0.0, 0.0)
    return ClientRecord(
        client=number,
        tasks=total,
        mixture={category: count / total for category, count in held.items()},
        coverage=coverage,
        success=own if coverage else None,
    )


# ---- an entry ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tabulated:
    """The numbers of a cell: `values[task, measure]` of its episodes, and those of the cell as a whole."""

    names: Sequence[str]
    values: Values
    whole: Mapping[str, float]

    def get_means(self) -> dict[str, float]:
        """One number a measure."""
        return {**dict(zip(self.names, self.values.mean(axis=0).tolist(), strict=True)), **self.whole}

    def get_column(self, name: str) -> Values:
        """One number a task; a measure of the whole cell is the same for each."""
        if name in self.names:
            return self.values[:, self.names.index(name)]
        return np.full(len(self.values), self.whole[name])


def aggregate(suite: Suite, cells: Sequence[CellData]) -> tuple[Measures, dict[str, Measures]]:
    """The measures over all scenarios, and those of each: a target may be reached in one and not in another."""
    tables = _tabulate(suite, cells)
    estimate = _estimate_runs if suite.track == "methods" else _estimate_agent
    by_scenario = {name: estimate([rows]) for name, rows in tables.items()}
    return estimate(list(tables.values())), add_uniform_loss(suite, tables, by_scenario)


def _tabulate(suite: Suite, cells: Sequence[CellData]) -> dict[str, list[Tabulated]]:
    """The cells of each scenario, in the order of the suite's scenarios and seeds."""
    by_key = {(data.scenario, data.seed): data for data in cells}
    found: dict[str, list[Tabulated]] = {}
    for scenario in suite.scenarios:
        for seed in suite.seeds:
            if (data := by_key.get((scenario, seed))) is not None:
                table = Tabulated(*tabulate_tasks(suite, data.groups), measure_run(suite, data))
                found.setdefault(scenario, []).append(table)
    return found


def _estimate_agent(scenarios: Sequence[Sequence[Tabulated]]) -> Measures:
    """An agent that is not trained, on other tasks: seeds are repeats, scenarios have equal weight."""
    cells = [cell for rows in scenarios for cell in rows]
    names = [name for name in cells[0].names if all(name in cell.names for cell in cells)]
    strata = [
        np.mean([cell.values[:, [cell.names.index(name) for name in names]] for cell in rows], axis=0)
        for rows in scenarios
    ]
    numbers = {
        name: mean([mean([cell.whole[name] for cell in rows]) for rows in scenarios])
        for name in cells[0].whole
        if all(name in cell.whole for cell in cells)
    }
    return {**estimate_tasks(names, strata), **_fix(numbers)}


def _estimate_runs(scenarios: Sequence[Sequence[Tabulated]]) -> Measures:
    """A method in other runs: one number for each replicate, the mean over scenarios of equal weight."""
    means = [[cell.get_means() for cell in rows] for rows in scenarios]
    names = [name for name in means[0][0] if all(name in cell for rows in means for cell in rows)]
    return {
        name: estimate_spread(average_replicates([[cell[name] for cell in rows] for rows in means])) for name in names
    }


def average_replicates(scenarios: Sequence[Sequence[float]]) -> list[float]:
    """The mean over scenarios of every replicate."""
    return [math.fsum(values) / len(values) for values in zip(*scenarios, strict=True)]


def average_runs(values: Mapping[str, Values]) -> list[float]:
    """The mean over scenarios of every run, from the `values[seed, task]` of each scenario."""
    return average_replicates([table.mean(axis=1).tolist() for table in values.values()])


def estimate_spread(values: Sequence[float]) -> Interval:
    """The mean of a number that every run has once."""
    found = estimate_replicates(values)
    return Interval(mean=found.mean, low=found.low, high=found.high)


def add_uniform_loss(
    suite: Suite, tables: Mapping[str, Sequence[Tabulated]], found: Mapping[str, Measures]
) -> dict[str, Measures]:
    """The loss of each scenario of an axis against the one with the uniform division, in the same replicates."""
    even = {one.axis: name for name, one in suite.scenarios.items() if one.axis and one.level == UNIFORM}
    completed = {}
    for name, measures in found.items():
        axis = suite.scenarios[name].axis
        base = None if axis is None else even.get(axis)
        added: Measures = {}
        if base is not None and base != name and len(tables.get(base, ())) == len(tables[name]):
            here, there = ([cell.get_means()["success"] for cell in tables[each]] for each in (name, base))
            added["uniform_loss"] = estimate_spread([one - other for one, other in zip(there, here, strict=True)])
        completed[name] = {**measures, **added}
    return completed


def collect_ranked(suite: Suite, cells: Sequence[CellData], ranked: str) -> dict[str, Values] | None:
    """The ranked measure as `values[seed, task]` of each scenario; None if some cell does not have it. A measure of a whole
    cell is the same for each of its tasks."""
    found = {}
    for scenario, rows in _tabulate(suite, cells).items():
        if any(ranked not in cell.get_means() for cell in rows):
            return None
        found[scenario] = np.stack([cell.get_column(ranked) for cell in rows])
    return found
