"""The numbers of an entry, from the records of its runs: the measures of each run, of a scenario, and of all together.

On the methods track the unit is the run: intervals are about other runs, and there are none below `FEWEST_REPLICATES`. On the
agents track, where nothing is trained, the unit is the task, so the episodes are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedagentgym.algorithms.reports import PERCENTILE
from fedagentgym.base.statistics import Values, estimate_replicates, mean
from fedagentgym.leaderboard.metrics import Interval, Measures
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.learning.evaluation import estimate_measures, tabulate_measures
from fedagentgym.learning.settings import OWN_WORLD
from fedagentgym.learning.trajectory import Group
from fedagentgym.runs.record import CurvePoint, RunRecord


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of a run: one a measure; of an agent's also `values[task, measure]` of its episodes, with their `names`."""

    means: Mapping[str, float]
    names: Sequence[str] = ()
    values: Values | None = None

    def get_column(self, name: str) -> Values:
        """One number a task; of a measure of the whole run, or where only means are known, one in all."""
        if self.values is not None and name in self.names:
            return self.values[:, self.names.index(name)]
        return np.full(1 if self.values is None else len(self.values), self.means[name])


@dataclass(frozen=True)
class Numbers:
    """The numbers of an entry. `runs` has those of each run by scenario and seed; `overall` is empty unless all scenarios were
    played, since these numbers are about all."""

    overall: Measures
    played: Measures  # over the scenarios that were played
    by_scenario: Mapping[str, Measures]
    runs: Mapping[str, Mapping[int, RunNumbers]]
    trained: bool

    def list_runs(self, measure: str, scenario: str = "") -> list[float]:
        """A measure in each training run, in one scenario or in the mean over all; nothing if some run lacks it."""
        if not self.trained:
            return []
        rows = [self.runs[name].values() for name in ([scenario] if scenario else self.runs)]
        if any(measure not in run.means for row in rows for run in row):
            return []
        return average_replicates([[run.means[measure] for run in row] for row in rows])

    def tabulate(self, measure: str) -> dict[str, Values] | None:
        """A measure as `values[seed, task]` of each scenario; None if some run does not have it."""
        if any(measure not in run.means for row in self.runs.values() for run in row.values()):
            return None
        return {name: np.stack([run.get_column(measure) for run in row.values()]) for name, row in self.runs.items()}


def measure_entry(
    suite: Suite,
    records: Mapping[tuple[str, int], RunRecord],
    read_groups: Callable[[tuple[str, int]], tuple[Group, ...]],
) -> Numbers:
    """The numbers of an entry; `read_groups` gives the ranked episodes of a run, where these are needed."""
    runs: dict[str, dict[int, RunNumbers]] = {}
    for scenario in suite.scenarios:
        for seed in suite.seeds:
            if (record := records.get((scenario, seed))) is not None:
                with_episodes = suite.track == "agents" or suite.pass_powers
                groups = read_groups((scenario, seed)) if with_episodes else ()
                runs.setdefault(scenario, {})[seed] = measure_run(suite, record, groups)
    trained = suite.track == "methods"
    estimate = _estimate_runs if trained else _estimate_agent
    rows = {name: list(each.values()) for name, each in runs.items()}
    by_scenario = {name: estimate([each]) for name, each in rows.items()}
    played = estimate(list(rows.values()))
    even = {one.axis: name for name, one in suite.scenarios.items() if one.axis and one.level == 0}
    for name, each in rows.items():  # the loss against the scenario with the uniform division, in the same replicates
        base = even.get(suite.scenarios[name].axis or "")
        if base is not None and base != name and len(rows.get(base, ())) == len(each):
            pairs = zip(rows[base], each, strict=True)
            losses = [one.means["success"] - other.means["success"] for one, other in pairs]
            by_scenario[name]["uniform_loss"] = estimate_spread(losses)
    return Numbers(played if len(rows) == len(suite.scenarios) else {}, played, by_scenario, runs, trained)


def measure_run(suite: Suite, record: RunRecord, groups: Sequence[Group] = ()) -> RunNumbers:
    """The measures of a run, from its record; those of single tasks, and pass^k, from its episodes."""
    assert record.ranked is not None
    found = {name: one["mean"] for name, one in record.ranked.overall.items()}
    names, values = tabulate_measures(groups) if groups else ([], None)
    if values is not None and suite.pass_powers:
        solved = [[trajectory.success for trajectory in group] for group in groups]
        # for each task, the chance that so many of its episodes, drawn without replacement, are all solved
        for power in suite.pass_powers:
            chances = [math.comb(sum(row), power) / math.comb(len(row), power) for row in solved]
            values = np.column_stack([values, chances])
            names = [*names, f"pass^{power}"]
            found[f"pass^{power}"] = float(np.mean(chances))
    if own := [client.success for client in record.clients if client.success is not None]:
        # a client's mixture is of the ranked tasks
        found |= {"worst_client": min(own), "client_p10": float(np.percentile(own, PERCENTILE))}
        found["own_gap"] = mean(own) - found["success"]
    if (worlds := record.ranked.at_clients.get(OWN_WORLD)) is not None:
        found |= {"own_world": worlds["mean"], "own_world_worst": worlds["worst"]}
        found["own_world_p10"] = worlds[f"p{PERCENTILE}"]
    if record.curve:
        found |= _measure_curve(suite, record.curve)
        found |= {
            name: float(getattr(record.spent, name)) for name in ("bytes", "episodes", "looks", "optimizer_steps")
        }
        if record.labelled is not None:
            found["labelled"] = float(record.labelled)
    if record.usage is not None:
        for name in ("prompt_tokens", "reply_tokens", "cost"):
            found[name] = float(getattr(record.usage, name)) / record.ranked.episodes
    if record.privacy is not None:
        found["epsilon"] = record.privacy.epsilon
    return RunNumbers(found, names, values)


def _measure_curve(suite: Suite, points: Sequence[CurvePoint]) -> dict[str, float]:
    """The area under the curve (mean success over the episodes of the budget; constant before the first point, while a method
    prepares, and after the last), forgetting (mean fall of a category from its best to the end), and the cost of the target."""
    curve = [(point.spent.episodes, point.overall["success"]["mean"]) for point in points]
    (first, start), (last, final) = curve[0], curve[-1]
    end = float(max(suite.budget.episodes or 0, last))
    area = first * start
    for (before, low), (after, high) in pairwise(curve):
        area += (after - before) * (low + high) / 2
    categories = points[-1].categories
    falls = [max(point.categories.get(name, 0.0) for point in points) - categories[name] for name in categories]
    found = {"area": (area + (end - last) * final) / end if end else final, "forgetting": mean(falls)}
    if suite.target is not None:
        reached = next((point for point in points if point.overall["success"]["mean"] >= suite.target), None)
        found["reached_target"] = float(reached is not None)
        if reached is not None:
            found |= {"rounds_to_target": float(reached.round), "bytes_to_target": float(reached.spent.bytes)}
    return found


def estimate_tasks(names: Sequence[str], strata: Sequence[Values]) -> Measures:
    """The measures of `values[task, measure]`, with intervals over tasks."""
    return {name: Interval(**one._asdict()) for name, one in estimate_measures(names, strata).items()}


def _estimate_agent(scenarios: Sequence[Sequence[RunNumbers]]) -> Measures:
    """An agent that is not trained, on other tasks: seeds are repeats, scenarios have equal weight."""
    runs = [run for rows in scenarios for run in rows]
    names = [name for name in runs[0].names if all(name in run.names for run in runs)]
    strata = [
        np.mean([np.stack([run.get_column(name) for name in names], axis=1) for run in rows], axis=0)
        for rows in scenarios
    ]
    whole = {
        name: Interval(mean=mean([mean([run.means[name] for run in rows]) for rows in scenarios]))
        for name in runs[0].means
        if name not in names and all(name in run.means for run in runs)
    }
    return {**estimate_tasks(names, strata), **whole}


def _estimate_runs(scenarios: Sequence[Sequence[RunNumbers]]) -> Measures:
    """A method in other runs: one number for each replicate, the mean over scenarios of equal weight."""
    rows = [[run.means for run in each] for each in scenarios]
    names = [name for name in rows[0][0] if all(name in run for each in rows for run in each)]
    return {name: estimate_spread(average_replicates([[run[name] for run in each] for each in rows])) for name in names}


def average_replicates(scenarios: Sequence[Sequence[float]]) -> list[float]:
    """The mean over scenarios of every replicate."""
    return [math.fsum(values) / len(values) for values in zip(*scenarios, strict=True)]


def average_runs(values: Mapping[str, Values]) -> list[float]:
    """The mean over scenarios of every run, from the `values[seed, task]` of each scenario."""
    return average_replicates([table.mean(axis=1).tolist() for table in values.values()])


def estimate_spread(values: Sequence[float]) -> Interval:
    """The mean of a number that every run has once."""
    return Interval(**estimate_replicates(values)._asdict())
