"""Learning curves: those of runs, of runs of several seeds, and of packed results, and their means over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import format_path
from fedagentgym.base.statistics import mean
from fedagentgym.federation.records import read_metrics_log
from fedagentgym.leaderboard.cells import sum_spent
from fedagentgym.leaderboard.compare import list_runs
from fedagentgym.leaderboard.record import MANIFEST, CurvePoint, Interval, read_curves


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
    """The curves that are recorded in a run, a folder of runs or a packed result; none for a file."""
    if (path / MANIFEST).is_file():
        return tuple(LearningCurve(one.scenario, one.points) for one in read_curves(path).cells)
    found = [LearningCurve("", _read_run(run)) for run in list_runs(path)]
    return tuple(one for one in found if one.points)


def _read_run(folder: Path) -> tuple[CurvePoint, ...]:
    place = folder / "metrics.jsonl"
    records = list(read_metrics_log(place))
    try:
        return tuple(
            CurvePoint(
                round=record["round"],
                spent=sum_spent(records, record["round"]),
                measures=_read_measures(record["evaluation"]["overall"]),
                categories={},
            )
            for record in records
            if "evaluation" in record
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{format_path(place)} is malformed: it is not what a run of this version writes") from None


def _read_measures(overall: Mapping[str, Any]) -> dict[str, Interval]:
    return {name: Interval(mean=one["mean"], low=one["low"], high=one["high"]) for name, one in overall.items()}


def average_curves(curves: Sequence[Sequence[CurvePoint]], measure: str = "success") -> list[MeanPoint]:
    """The mean over curves in the rounds that all of them evaluated; nothing if the measure was not recorded."""
    by_round = [{point.round: point for point in curve if measure in point.measures} for curve in curves]
    common = set.intersection(*(set(one) for one in by_round)) if by_round else set()
    found = []
    for number in sorted(common):
        points = [one[number] for one in by_round]
        reached = [point.measures[measure] for point in points]
        values = [one.mean for one in reached]
        own = reached[0].ends if len(reached) == 1 else None
        low, high = own or (min(values), max(values))
        episodes = mean([float(point.spent.episodes) for point in points])
        sent = mean([float(point.spent.bytes_down + point.spent.bytes_up) for point in points])
        found.append(MeanPoint(number, episodes, sent, mean(values), low, high))
    return found
