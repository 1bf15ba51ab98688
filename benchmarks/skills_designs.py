"""The number of runs that a difference of 0.05 takes: by the last evaluation of a run, or by the mean of its last three.

    python -m benchmarks skills-designs

From the kept results of the tables: for every pair the spread of the differences seed by seed, and the number of runs with which
Student's t at 5 % finds a difference of 0.05 in 80 of 100 tables. The effect in spreads says whether the mean of three also
shrinks what is looked for, as it does while a run still learns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median, stdev

from benchmarks.curves import Point
from benchmarks.measurement import Measurement
from benchmarks.skills_results import RowResults, list_present
from benchmarks.skills_tables import EXPERIMENTS, load_kept_results
from benchmarks.tables import mean
from fedagentgym.base.statistics import LEVEL, MIN_REPLICATES

DIFFERENCE, POWER, MAX_RUNS = 0.05, 0.8, 400
DESIGNS: dict[str, Callable[[Sequence[Point]], float]] = {
    "last evaluation": lambda curve: curve[-1].success,
    "mean of the last three": lambda curve: mean([point.success for point in curve[-3:]]),
}


def count_runs(spread: float) -> int:
    """The runs with which the difference is found at this power; at most `MAX_RUNS`.

    >>> count_runs(0.05)
    10
    """
    from scipy.stats import nct, t

    for runs in range(2, MAX_RUNS):
        quantile = t.ppf(1 - LEVEL / 2, runs - 1)
        if nct.sf(quantile, runs - 1, DIFFERENCE / spread * runs**0.5) >= POWER:
            return runs
    return MAX_RUNS


def run(quick: bool = False) -> list[Measurement]:
    """Runs needed for a difference of 0.05 in the tables of skills: by the last evaluation, or the mean of the last three."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in DESIGNS}
    for experiment in EXPERIMENTS:
        results = load_kept_results(experiment)
        for first, second in [] if results is None else list_present(results, experiment.table.pairs):
            assert results is not None
            for name, measured in measure_pair(results.get(first), results.get(second)).items():
                found[name].append(measured)
    lines = []
    for name, pairs in found.items():
        lines += [
            Measurement(f"{name}: spread of a difference", median(spread for spread, _ in pairs), "median over pairs"),
            Measurement(
                f"{name}: runs for 0.05", median(count_runs(spread) for spread, _ in pairs), "median over pairs"
            ),
            Measurement(f"{name}: effect in spreads", median(abs(each) / spread for spread, each in pairs), "median"),
        ]
    return lines


def measure_pair(first: RowResults, second: RowResults) -> dict[str, tuple[float, float]]:
    """By design, the spread and the mean of the differences; nothing for pairs of few runs, few evaluations, or equal runs."""
    curves = [*first.curves, *second.curves]
    if len(first.curves) != len(second.curves) or len(first.curves) < MIN_REPLICATES or min(map(len, curves)) < 4:
        return {}
    found = {}
    for name, read in DESIGNS.items():
        values = [read(one) - read(other) for one, other in zip(first.curves, second.curves, strict=True)]
        if stdev(values) == 0:
            return {}
        found[name] = (stdev(values), mean(values))
    return found
