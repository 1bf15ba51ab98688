"""The result of a run: the sentence at the top of its report, and the values with which its curve is compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_json
from fedagentgym.base.numbers import mean
from fedagentgym.experiment.report.background import Background
from fedagentgym.experiment.report.charts import Chart, Reference, Series
from fedagentgym.experiment.report.episodes import ShownEpisode
from fedagentgym.experiment.report.markup import format_bound, format_bytes, format_percent, format_points, show
from fedagentgym.federation.meter import headline_bytes
from fedagentgym.learning.evaluation import Estimate, find_interval, resample_means
from fedagentgym.learning.settings import EvaluationSettings

Record = Mapping[str, Any]
SEED = 0
"""Seed of the interval of a difference, so that a report is reproducible."""
MOST_NEIGHBOURS = 200
COMPARED = ("zero-shot", "local", "centralized")
_SAME = ("env", "partition", "agent", "warm_start", "seed")


def measure_gain(before: Sequence[ShownEpisode], after: Sequence[ShownEpisode]) -> Estimate | None:
    """How much more often tasks are solved, with its interval over the tasks that were played in both evaluations; several
    evaluation sets have equal weight. None if the two did not play the same tasks."""
    first, second = _group_outcomes(before), _group_outcomes(after)
    if not first or first.keys() != second.keys():
        return None
    settings = EvaluationSettings()
    means, resampled = [], []
    for name in sorted(first):
        tasks = sorted(first[name])
        if tasks != sorted(second[name]):
            return None
        differences = np.array([[[mean(second[name][task]) - mean(first[name][task])]] for task in tasks])
        means.append(float(differences.mean()))
        resampled.append(resample_means(differences, settings, SEED, f"gain {name}"))
    low, high = find_interval(np.mean(resampled, axis=0), settings)
    return Estimate(mean(means), float(low[0]), float(high[0]))


def _group_outcomes(episodes: Sequence[ShownEpisode]) -> dict[str, dict[tuple[str, int], list[float]]]:
    """Whether each episode was solved, by set and task."""
    found: dict[str, dict[tuple[str, int], list[float]]] = {}
    for shown in episodes:
        one = shown.trajectory
        found.setdefault(shown.set, {}).setdefault((one.task, one.seed), []).append(float(one.success))
    return found


def tell_result(records: Sequence[Record], gain: Estimate | None, split: str | None) -> str:
    """The first sentence of the report."""
    judged = [record for record in records if "evaluation" in record]
    sent = headline_bytes(records[-1]["bytes_total"])
    cost = f"{format_bytes(sent)} exchanged" if sent else "nothing exchanged"
    if not judged:
        return f"Not evaluated: round {records[-1]['round']}, {cost}."
    tasks = "training tasks" if split == "train" else "unseen tasks"
    last = read_estimate(judged[-1], "success")
    if len(judged) == 1:
        when = "before training" if judged[0]["round"] == 0 else f"after round {judged[0]['round']}"
        return (
            f"<b>{format_percent(last.mean)}</b> of {tasks} solved {when}, interval"
            f" {format_percent(last.low)} to {format_percent(last.high)}."
        )
    first = read_estimate(judged[0], "success")
    found = gain or Estimate(last.mean - first.mean, float("nan"), float("nan"))
    interval = "" if gain is None else f" [{format_bound(found.low)}, {format_bound(found.high)}]"
    start = "" if judged[0]["round"] == 0 else f" since round {judged[0]['round']}"
    doubt = " The interval includes no change." if gain is not None and gain.low <= 0 <= gain.high else ""
    return (
        f"<b>{format_percent(first.mean)} → {format_percent(last.mean)}</b> on {tasks}{start},"
        f" {format_points(found.mean)} points{interval}, {cost}.{doubt}"
    )


def read_estimate(record: Record, name: str) -> Estimate:
    found = record["evaluation"]["overall"][name]
    return Estimate(found["mean"], found["low"], found["high"])


# ---- the curve and its references -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbour:
    """A finished run in a neighbouring folder, in the same environment and on the same tasks, with another method."""

    algorithm: str
    success: float
    folder: Path
    record: Record


def find_neighbours(place: Path, result: Record) -> list[Neighbour]:
    """Runs in neighbouring folders that differ from this one only in the method."""
    if not result:
        return []
    return [
        Neighbour(str(other["algorithm"]), float(other["final"]["overall"]["success"]["mean"]), folder, other)
        for folder, other in _iter_results(place)
        if other.get("algorithm") in COMPARED and other["algorithm"] != result["algorithm"]
        if _is_comparable(result, other)
    ]


def _iter_results(place: Path) -> Iterator[tuple[Path, Record]]:
    folders = (path for path in sorted(place.resolve().parent.iterdir()) if path != place.resolve())
    for folder in islice(folders, MOST_NEIGHBOURS):
        try:
            found = read_json(folder / "result.json") if (folder / "result.json").is_file() else None
        except (DataError, OSError):
            continue
        if isinstance(found, dict):
            yield folder, found


def _is_comparable(result: Record, other: Record) -> bool:
    try:
        ours, theirs = result["config"], other["config"]
        same_tasks = {**ours["evaluation"], "every": 0} == {**theirs["evaluation"], "every": 0}
        told = float(other["final"]["overall"]["success"]["mean"])
        return same_tasks and 0 <= told <= 1 and all(ours.get(name) == theirs.get(name) for name in _SAME)
    except (KeyError, TypeError, ValueError):
        return False


def list_references(
    records: Sequence[Record], background: Background | None, neighbours: Sequence[Neighbour]
) -> list[Reference]:
    """The horizontal lines of the curve: the agent before training, the expert, and runs of other methods."""
    found = []
    judged = [record for record in records if "evaluation" in record]
    if judged and judged[0]["round"] == 0 and len(judged) > 1:
        found.append(_refer("before training (zero-shot)", read_estimate(judged[0], "success").mean))
    if background is not None and background.expert is not None:
        found.append(_refer("expert", background.expert))
    for name in COMPARED[1:]:
        values = [one.success for one in neighbours if one.algorithm == name]
        if values:
            found.append(_refer(name if len(values) == 1 else f"{name}, mean of {len(values)} runs", mean(values)))
    return found


def _refer(name: str, value: float) -> Reference:
    return Reference(f"{name} {format_percent(value)}", value)


def make_success_chart(records: Sequence[Record], references: Sequence[Reference]) -> Chart:
    """The global model on held-out tasks, and the clients while they trained."""
    judged = [record for record in records if "evaluation" in record]
    estimates = [(record["round"], read_estimate(record, "success")) for record in judged]
    line = Series(
        "global model on held-out tasks, with its interval",
        [(number, one.mean) for number, one in estimates],
        band=[(one.low, one.high) for _, one in estimates],
        labels=[f"round {number}: {one.mean:.1%} ({one.low:.1%} to {one.high:.1%})" for number, one in estimates],
    )
    dots = make_client_dots([record for record in records if record["round"] > 0], "success")
    series = [Series("clients in training, own tasks", dots.points, "dots", labels=dots.labels, colour=2), line]
    return Chart("Success by round", series, limits=(0.0, 1.0), references=references, percent=True)


def make_client_dots(records: Sequence[Record], metric: str) -> Series:
    """A number of every client of every round."""
    found = [
        (record["round"], numbers[metric], client)
        for record in records
        for client, numbers in record["clients"].items()
        if metric in numbers
    ]
    labels = [f"client {client}, round {number}: {value:.3g}" for number, value, client in found]
    return Series("clients", [(number, value) for number, value, _ in found], "dots", labels=labels, colour=2)


def describe_run(result: Record, records: Sequence[Record]) -> str:
    """A description of the run in one line."""
    if not result:
        return f"An unfinished run: {records[-1]['round']} rounds so far."
    config = result["config"]
    partition = config["partition"].get("file") or config["partition"]["sampler"]
    each = config["federation"].get("clients_per_round")
    members = "all clients" if each is None else f"{each} clients"
    return show(
        f"{result['algorithm']} on {config['env']['id']}, agent {config['agent']['name']},"
        f" {result['client_split']['clients']} clients ({partition}), {members} in each of {result['rounds']} rounds,"
        f" seed {result['seed']}"
    )
