"""The numbers of an entry, and the order of entries: measures, differences, and the bands that follow from them.

On the methods track the unit is the run: intervals are about other runs, and there are none with fewer than `MIN_REPLICATES`
runs. On the agents track, where nothing is trained, the unit is the task, so episodes are read (`fedagentgym.base.statistics`).

The comparisons of a page are corrected together (`compare_suite`): those that the suite plans, in scenarios and in the mean over
all, and every other pair of entries in that mean. Two entries share a band if and only if their difference in the mean is not
decided. With too few runs for a test there are no ranks, and two entries share a band if the spread of all entries' runs explains
the difference of their means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from fedagentgym.algorithms.reports import PERCENTILE
from fedagentgym.base.errors import DataError
from fedagentgym.base.statistics import (
    LEVEL,
    MIN_REPLICATES,
    Difference,
    Values,
    bound_spread,
    compare_replicates,
    compare_tasks,
    compute_log_odds,
    correct,
    count_replicates,
    estimate_replicates,
    find_decidable,
    mean,
    pool_spread,
)
from fedagentgym.leaderboard.metrics import OWN_REWARDS, Interval, Measures, find_metric
from fedagentgym.leaderboard.suite import WHOLE, Expectation, Gain, Suite
from fedagentgym.learning.evaluation import estimate_measures, is_share, tabulate_measures
from fedagentgym.learning.settings import OWN_WORLD
from fedagentgym.learning.trajectory import Group
from fedagentgym.runs.record import CurvePoint, RunRecord

Scenarios = Mapping[str, Values]
"""The values of a measure by scenario, as `values[seed, task]`."""


# ---- the numbers of an entry ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunNumbers:
    """The mean of each measure in a run; if its episodes were read, also `values[task, measure]` for the measures `names`."""

    means: Mapping[str, float]
    names: Sequence[str] = ()
    values: Values | None = None

    def get_column(self, name: str) -> Values:
        """The values of a measure by task. A measure of the whole run is repeated for every task, or is one value if no episodes
        were read."""
        if self.values is not None and name in self.names:
            return self.values[:, self.names.index(name)]
        return np.full(1 if self.values is None else len(self.values), self.means[name])


@dataclass(frozen=True)
class Numbers:
    """The numbers of an entry. `runs` has the numbers of each run by scenario and seed. `overall` has the measures over all
    scenarios, and is empty unless all were played."""

    overall: Measures
    played: Measures  # over the scenarios that the entry played
    by_scenario: Mapping[str, Measures]
    runs: Mapping[str, Mapping[int, RunNumbers]]
    trained: bool

    def list_runs(self, measure: str, scenario: str = "") -> list[float]:
        """A measure in each training run, in one scenario or in the mean over all; empty if a run lacks it."""
        if not self.trained:
            return []
        rows = [self.runs[name].values() for name in ([scenario] if scenario else self.runs)]
        if any(measure not in run.means for row in rows for run in row):
            return []
        return average_replicates([[run.means[measure] for run in row] for row in rows])

    def tabulate(self, measure: str) -> dict[str, Values] | None:
        """A measure as `values[seed, task]` of each scenario; None if a run lacks it."""
        if any(measure not in run.means for row in self.runs.values() for run in row.values()):
            return None
        return {name: np.stack([run.get_column(measure) for run in row.values()]) for name, row in self.runs.items()}


def measure_entry(
    suite: Suite,
    records: Mapping[tuple[str, int], RunRecord],
    read_groups: Callable[[tuple[str, int]], tuple[Group, ...]],
) -> Numbers:
    """Compute the numbers of an entry. `read_groups` returns the ranked episodes of a run and is called only if needed."""
    runs: dict[str, dict[int, RunNumbers]] = {}
    for scenario in suite.scenarios:
        for seed in suite.seeds:
            if (record := records.get((scenario, seed))) is not None:
                with_episodes = suite.track == "agents" or suite.pass_powers
                groups = read_groups((scenario, seed)) if with_episodes else ()
                runs.setdefault(scenario, {})[seed] = measure_run(suite, scenario, record, groups)
    trained = suite.track == "methods"
    rows = {name: list(each.values()) for name, each in runs.items()}
    by_scenario = {name: _estimate([each], trained) for name, each in rows.items()}
    played = _estimate(list(rows.values()), trained)
    even = {one.axis: name for name, one in suite.scenarios.items() if one.axis and one.level == 0}
    for name, each in rows.items():  # the loss against the scenario with the uniform division, in the same replicates
        base = even.get(suite.scenarios[name].axis or "")
        if base is not None and base != name and len(rows.get(base, ())) == len(each):
            pairs = zip(rows[base], each, strict=True)
            losses = [one.means["success"] - other.means["success"] for one, other in pairs]
            by_scenario[name]["uniform_loss"] = estimate_spread(losses)
    return Numbers(played if len(rows) == len(suite.scenarios) else {}, played, by_scenario, runs, trained)


def measure_run(suite: Suite, scenario: str, record: RunRecord, groups: Sequence[Group] = ()) -> RunNumbers:
    """Compute the measures of a run from its record, and those by task and pass^k from its episodes if given."""
    assert record.ranked is not None
    found = {name: one["mean"] for name, one in record.ranked.overall.items()}
    names, values = tabulate_measures(groups) if groups else ([], None)
    if values is not None and suite.pass_powers:
        solved = [[trajectory.success for trajectory in group] for group in groups]
        # for each task, the probability that `power` of its episodes, drawn without replacement, are all solved
        for power in suite.pass_powers:
            chances = [math.comb(sum(row), power) / math.comb(len(row), power) for row in solved]
            values = np.column_stack([values, chances])
            names = [*names, f"pass^{power}"]
            found[f"pass^{power}"] = float(np.mean(chances))
    if own := [client.success for client in record.clients if client.success is not None]:
        # success on each client's own mixture of the ranked tasks
        found |= {"worst_client": min(own), "client_p10": float(np.percentile(own, PERCENTILE))}
        found["own_gap"] = mean(own) - found["success"]
    if (worlds := record.ranked.at_clients.get(OWN_WORLD)) is not None:
        found |= {"own_world": worlds["mean"], "own_world_worst": worlds["worst"]}
        found["own_world_p10"] = worlds[f"p{PERCENTILE}"]
        if "mixture" in worlds:
            found |= {"own_mixture": worlds["mixture"], "own_mixture_worst": worlds["mixture_worst"]}
    if objectives := suite.scenarios[scenario].objectives:
        found |= _measure_own_rewards(record, objectives)
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


def _measure_own_rewards(record: RunRecord, objectives: Sequence[Sequence[str]]) -> dict[str, float]:
    """The rewards of the ranked policy on each client's own mixture of the ranked tasks, averaged over the components that the
    client asks for: the mean over all clients, and the lowest mean over the clients with the same objectives."""
    assert record.ranked is not None
    categories = record.ranked.categories
    by_objectives: list[list[float]] = [[] for _ in objectives]
    for client in record.clients:
        asked = client.client % len(objectives)
        shares = {name: share for name, share in client.mixture.items() if name in categories}
        if absent := [
            name for name in objectives[asked] if any(f"reward/{name}" not in categories[one] for one in shares)
        ]:
            raise DataError(f"objectives: {absent[0]!r} is no component of the rewards of these tasks")
        if shares:
            paid = [
                sum(share * categories[one][f"reward/{name}"]["mean"] for one, share in shares.items())
                for name in objectives[asked]
            ]
            by_objectives[asked].append(mean(paid) / sum(shares.values()))
    means = [mean(values) for values in by_objectives if values]
    if not means:
        return {}
    return {OWN_REWARDS: mean([one for values in by_objectives for one in values]), f"{OWN_REWARDS}_worst": min(means)}


def has_collapsed(curve: Sequence[CurvePoint]) -> bool | None:
    """True if a run's success in its last evaluated round is not above that in its first one, on the same tasks. None if it was
    evaluated once, or if the policy of the curve was never trained, because each client trains its own."""
    if len(curve) < 2 or (curve[0].policy is not None and curve[0].policy == curve[-1].policy):
        return None
    return curve[-1].overall["success"]["mean"] <= curve[0].overall["success"]["mean"]


def _measure_curve(suite: Suite, points: Sequence[CurvePoint]) -> dict[str, float]:
    """The area under the curve (mean success over the episodes of the budget, constant before the first point and after the
    last), forgetting (mean fall of a category from its best success to the last), and the rounds and bytes to the target."""
    curve = [(point.spent.episodes, point.overall["success"]["mean"]) for point in points]
    (first, start), (last, final) = curve[0], curve[-1]
    end = float(max(suite.budget.episodes or 0, last))
    area = first * start
    for (before, low), (after, high) in pairwise(curve):
        area += (after - before) * (low + high) / 2
    categories = points[-1].categories
    falls = [max(point.categories.get(name, 0.0) for point in points) - categories[name] for name in categories]
    found = {} if (collapsed := has_collapsed(points)) is None else {"collapsed": float(collapsed)}
    found |= {"area": (area + (end - last) * final) / end if end else final, "forgetting": mean(falls)}
    if suite.target is not None:
        reached = next((point for point in points if point.overall["success"]["mean"] >= suite.target), None)
        found["reached_target"] = float(reached is not None)
        if reached is not None:
            found |= {"rounds_to_target": float(reached.round), "bytes_to_target": float(reached.spent.bytes)}
    return found


def _estimate(scenarios: Sequence[Sequence[RunNumbers]], trained: bool) -> Measures:
    """The measures over scenarios of equal weight. Intervals are over runs for a method and over tasks for an agent."""
    runs = [run for rows in scenarios for run in rows]
    rows = {
        name: [[run.means[name] for run in rows] for rows in scenarios]
        for name in runs[0].means
        if all(name in run.means for run in runs)
    }
    if trained:
        return {name: estimate_spread(average_replicates(each)) for name, each in rows.items()}
    names = [name for name in runs[0].names if all(name in run.names for run in runs)]
    strata = [
        np.mean([np.stack([run.get_column(name) for name in names], axis=1) for run in rows], axis=0)
        for rows in scenarios
    ]
    whole = {name: Interval(mean=mean(list(map(mean, each)))) for name, each in rows.items() if name not in names}
    return {**estimate_tasks(names, strata), **whole}


def estimate_tasks(names: Sequence[str], strata: Sequence[Values]) -> Measures:
    """The measures of `values[task, measure]`, with intervals over tasks."""
    return {name: Interval(**one._asdict()) for name, one in estimate_measures(names, strata).items()}


def average_replicates(scenarios: Sequence[Sequence[float]]) -> list[float]:
    """The mean over scenarios of every replicate."""
    return [math.fsum(values) / len(values) for values in zip(*scenarios, strict=True)]


def average_runs(values: Mapping[str, Values]) -> list[float]:
    """The mean over scenarios of every run, from the `values[seed, task]` of each scenario."""
    return average_replicates([table.mean(axis=1).tolist() for table in values.values()])


def estimate_spread(values: Sequence[float]) -> Interval:
    """The mean of one value per run, with its interval over runs."""
    return Interval(**estimate_replicates(values)._asdict())


# ---- the order of entries ---------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """The difference of two entries, first minus second, in a scenario or in the mean over all (`WHOLE`). For a `gain` it is the
    gain's first difference minus its second one."""

    first: str
    second: str
    scenario: str
    difference: Difference
    planned: bool = True
    gain: Gain | None = None


class Place(NamedTuple):
    """An entry's place in the order, from 1 on, the numbers of its bands, and its rank (None if there are too few runs)."""

    order: int
    bands: tuple[int, ...] = ()
    rank: int | None = None


def compare_entries(
    first: Scenarios, second: Scenarios, measure: str, *, over_runs: bool, margin: float = 0.0
) -> Difference:
    """The paired difference of two entries in the same scenarios, over runs or over tasks. Its p-values are not corrected."""
    if over_runs:
        return compare_runs([(1, first), (-1, second)], measure, margin)
    paired = [first[name].mean(axis=0) - second[name].mean(axis=0) for name in first]
    return compare_tasks(paired, bounded=is_share(measure), margin=margin)


def compare_runs(terms: Sequence[tuple[int, Scenarios]], measure: str, margin: float = 0.0) -> Difference:
    """The signed sum of entries, tested over runs. Shares are also tested as log odds."""
    signs = np.array([[sign] for sign, _ in terms])
    runs = [average_runs(tables) for _, tables in terms]
    log_odds: list[float] = []
    if find_metric(measure).unit == "share":
        log_odds = (signs * [[compute_log_odds(one) for one in each] for each in runs]).sum(axis=0).tolist()
    return compare_replicates((signs * runs).sum(axis=0).tolist(), margin, log_odds)


def compare_suite(suite: Suite, values: Mapping[str, Scenarios]) -> list[Compared]:
    """Every comparison of a suite's page: the planned ones that their entries have played and, in the mean over scenarios, all
    other pairs of entries that have played the whole suite. They are corrected together."""
    measure, margin, over_runs = suite.rank_by, suite.smallest_difference, suite.track == "methods"

    def select(name: str, scenario: str) -> Scenarios:
        """The values of an entry in a scenario, or in all scenarios; empty if the entry has not played them."""
        tables = values.get(name, {})
        wanted = list(suite.scenarios) if scenario == WHOLE else [scenario]
        return {each: tables[each] for each in wanted} if all(each in tables for each in wanted) else {}

    others = [(*pair, suite.whole) for pair in combinations(sorted(list_complete(suite, values)), 2)]
    known = {(frozenset((first, second)), scenario) for first, second, scenario in suite.comparisons}
    planned = len(suite.comparisons)
    pairs = [*suite.comparisons, *(one for one in others if (frozenset(one[:2]), one[2]) not in known)]
    found: list[Compared] = []
    for place, (first, second, scenario) in enumerate(pairs):
        one, other = select(first, scenario), select(second, scenario)
        if one and other and all(table.shape == other[name].shape for name, table in one.items()):
            difference = compare_entries(one, other, measure, over_runs=over_runs, margin=margin)
            found.append(Compared(first, second, scenario, difference, place < planned))
    for gain in suite.gains:
        terms = [
            (sign, select(name, scenario))
            for part, scenario, signs in ((gain.of, gain.scenario, (1, -1)), (gain.than, gain.than_scenario, (-1, 1)))
            for sign, name in zip(signs, part, strict=True)
        ]
        if all(term for _, term in terms) and len({len(table) for _, term in terms for table in term.values()}) == 1:
            found.append(Compared(*gain.of, gain.scenario, compare_runs(terms, measure, margin), gain=gain))
    corrected = correct([one.difference for one in found])
    return [one._replace(difference=difference) for one, difference in zip(found, corrected, strict=True)]


def list_complete(suite: Suite, values: Mapping[str, Scenarios], scenarios: Collection[str] = ()) -> list[str]:
    """The entries that have played all seeds and tasks of these scenarios (by default of all), without the second entry of the
    suite's control, which repeats the first."""
    largest: dict[str, tuple[int, ...]] = {}
    for tables in sorted(values.values(), key=lambda tables: sum(table.size for table in tables.values())):
        largest |= {name: table.shape for name, table in tables.items()}
    wanted = [(name, largest.get(name)) for name in scenarios or suite.scenarios]
    return [
        entry
        for entry, tables in values.items()
        if entry not in (suite.control or ())[1:]
        and all(name in tables and tables[name].shape == shape for name, shape in wanted)
    ]


def rank(suite: Suite, values: Mapping[str, Scenarios], compared: Sequence[Compared]) -> dict[str, dict[str, Place]]:
    """The places of entries by scenario. Under `WHOLE` they are those of the entries that have played the whole suite, with bands
    from the comparisons of its page. Under each scenario they are the order of the entries that have played it, without bands;
    if the suite has one scenario, its places are those of the whole."""
    sign = -1.0 if find_metric(suite.rank_by).better == "lower" else 1.0

    def order(scenarios: Sequence[str]) -> dict[str, list[float]]:
        """The mean over scenarios of every run of an entry, best first."""
        runs = {
            name: average_runs({each: values[name][each] for each in scenarios})
            for name in list_complete(suite, values, scenarios)
        }
        return dict(sorted(runs.items(), key=lambda item: (-sign * float(np.mean(item[1])), item[0])))

    whole = order(list(suite.scenarios))
    is_ranked = suite.track == "agents" or all(len(each) >= MIN_REPLICATES for each in whole.values())
    if is_ranked:
        apart = {
            frozenset((one.first, one.second))
            for one in compared
            if one.scenario == suite.whole and one.gain is None and one.difference.is_decided
        }
    else:
        reach, means = find_reach(list(whole.values())), {name: float(np.mean(each)) for name, each in whole.items()}
        apart = {frozenset(pair) for pair in combinations(whole, 2) if abs(means[pair[0]] - means[pair[1]]) > reach}
    bands = find_bands(list(whole), apart)
    places = {
        name: Place(number, bands[name], number if is_ranked else None) for number, name in enumerate(whole, start=1)
    }
    if suite.whole != WHOLE:
        return {WHOLE: places, suite.whole: places}
    by_scenario = {
        name: {entry: Place(number) for number, entry in enumerate(order([name]), start=1)} for name in suite.scenarios
    }
    return {WHOLE: places, **by_scenario}


def find_bands(names: Sequence[str], apart: Collection[frozenset[str]]) -> dict[str, tuple[int, ...]]:
    """The bands of each entry. Bands are the maximal sets of entries of which no two are apart, numbered in the order of the
    entries, so two entries share a band if and only if they are not apart (a compact letter display).

    >>> find_bands(["a", "b", "c"], [frozenset("ac")])
    {'a': (1,), 'b': (1, 2), 'c': (2,)}
    """
    near = {one: {other for other in names if other != one and frozenset((one, other)) not in apart} for one in names}
    found: list[list[int]] = []

    def extend(chosen: frozenset[str], possible: set[str], done: set[str]) -> None:
        """Find all maximal sets that contain the chosen entries and were not found before (Bron and Kerbosch)."""
        if not possible and not done:
            found.append(sorted(map(names.index, chosen)))
            return
        pivot = max(sorted(possible | done), key=lambda one: len(near[one] & possible))
        for one in sorted(possible - near[pivot]):
            extend(chosen | {one}, possible & near[one], done & near[one])
            possible = possible - {one}
            done = done | {one}

    if names:
        extend(frozenset(), set(names), set())
    found.sort()
    return {
        name: tuple(number for number, band in enumerate(found, start=1) if place in band)
        for place, name in enumerate(names)
    }


def find_reach(runs: Sequence[Sequence[float]]) -> float:
    """Return the distance that chance explains between means of equal entries, if the runs of all entries have the same spread.
    It is infinite for fewer than two entries, or if no entry has two runs."""
    spread = pool_spread(runs)
    if spread is None or len(runs) < 2:
        return math.inf
    from scipy.special import stdtrit

    freedom = sum(len(values) - 1 for values in runs)
    quantile = stdtrit(freedom, 1 - LEVEL / (len(runs) * (len(runs) - 1)))
    return float(quantile * spread * math.sqrt(2 / min(map(len, runs)))) + 1e-12


def find_outcome(expected: Expectation, found: Sequence[Compared]) -> dict[str, str]:
    """Return the outcome of an expectation in each of its scenarios that both entries have played."""
    pair, sign = (expected.first, expected.second), {"above": 1, "below": -1, "equal to": 0}[expected.relation]
    outcomes = {}
    for one in found:
        if (
            one.gain is None
            and (one.first, one.second) == pair
            and one.scenario in (expected.scenarios or (one.scenario,))
        ):
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
    """Return the finding of a difference. If it is not decided, add how many runs would find one as large as the margin.

    With that number of runs four of five experiments would find it. It is a range, from the ends of the interval of the runs'
    standard deviation. `comparisons` are corrected together; `shown` is the margin in the words of the page.
    """
    reading = read_difference(difference, shown)
    if reading != "not decided" or not margin or not difference.values:
        return reading
    fewest, most = (count_replicates(spread, margin, comparisons) for spread in bound_spread(difference.values))
    if most <= len(difference.values):
        return f"{reading}, though {most:,} runs would find {shown}"
    return f"{reading}: takes {fewest:,} to {most:,} runs for {shown}"


def find_decided(difference: Difference, comparisons: int) -> float | None:
    """The smallest difference that the same number of runs would decide in four of five experiments, by the spread of this
    comparison; None if the runs are equal or too few."""
    values = difference.values
    spread = pool_spread([values]) if len(set(values)) > 1 else None
    decided = math.inf if spread is None else find_decidable(spread, len(values), comparisons)
    return decided if math.isfinite(decided) else None


def read_difference(difference: Difference, margin: str = "") -> str:
    """Return the finding of a difference: a direction, equality within the margin, both, or neither.

    >>> read_difference(Difference(0.1, adjusted=0.002)), read_difference(Difference(0.0, adjusted_unequal=0.01), "4 points")
    ('above', 'equal within 4 points')
    """
    direction = ["above" if difference.mean > 0 else "below"] if difference.is_decided else []
    equality = [f"equal within {margin}"] if difference.is_equal else []
    return ", ".join([*direction, *equality]) or ("not decided" if difference.p is not None else "too few runs")
