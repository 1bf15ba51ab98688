"""The results of a run: the sentence at the top of its report, the curve with its references, the success by category, and the
success before training, of clients that trained alone, and of all clients together.

A run is compared with baselines in neighbouring folders that have the same environment, clients, agent, warm start and seed.
The run and its baselines are evaluated on the same episodes, so that differences are taken task by task. If they learned with
different settings or for different rounds, the report names these settings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.base.errors import DataError, join_names
from fedagentgym.base.rounding import count_things, format_bytes, format_fixed, format_range, format_share
from fedagentgym.base.statistics import Estimate, compare_tasks, mean
from fedagentgym.experiment.report.background import Background
from fedagentgym.federation.checks import format_privacy
from fedagentgym.federation.records import headline_bytes
from fedagentgym.pages.charts import Chart, Dumbbell, Reference, Series
from fedagentgym.pages.episodes import ShownEpisode, read_episodes
from fedagentgym.pages.render import Strong, format_bound, format_percent, format_points
from fedagentgym.runs.folder import RunFolder

Record = Mapping[str, Any]
MAX_NEIGHBOURS = 200
MAX_CLIENTS = 4
"""Clients that trained alone, each of which gets a column."""
COMPARED = ("zero-shot", "local", "centralized")
MAX_NAMED = 4
"""Maximum number of named settings in which two runs differ."""
_SAME = ("env", "partition", "agent", "warm_start", "seed")


def list_evaluated(records: Sequence[Record]) -> list[Record]:
    """The rounds with an evaluation."""
    return [record for record in records if "evaluation" in record]


def name_round(record: Record) -> str:
    return "before training" if record["round"] == 0 else f"after round {record['round']}"


def read_estimate(part: Record) -> Estimate:
    found = part["success"]
    return Estimate(float(found["mean"]), float(found["low"]), float(found["high"]))


# ---- the first sentence ---------------------------------------------------------------------------------------------


def measure_gain(before: Sequence[ShownEpisode], after: Sequence[ShownEpisode]) -> Estimate | None:
    """Return how much more often tasks are solved, with its interval over the tasks that were played in both evaluations; several
    evaluation sets have equal weight. None if the two did not play the same tasks."""
    first, second = _group_outcomes(before), _group_outcomes(after)
    if not first or first.keys() != second.keys():
        return None
    strata = []
    for name in sorted(first):
        tasks = sorted(first[name])
        if tasks != sorted(second[name]):
            return None
        strata.append(np.array([mean(second[name][task]) - mean(first[name][task]) for task in tasks]))
    found = compare_tasks(strata, bounded=True)
    assert found.low is not None and found.high is not None
    return Estimate(found.mean, found.low, found.high)


def _group_outcomes(episodes: Sequence[ShownEpisode]) -> dict[str, dict[tuple[str, int], list[float]]]:
    """Return the outcomes, 1 for solved and 0 for not, by evaluation set and by task with its seed."""
    found: dict[str, dict[tuple[str, int], list[float]]] = {}
    for shown in episodes:
        one = shown.trajectory
        found.setdefault(shown.set, {}).setdefault((one.task, one.seed), []).append(float(one.success))
    return found


def describe_result(records: Sequence[Record], gain: Estimate | None, split: str | None) -> list[str]:
    """The first sentence of the report, in parts."""
    evaluated = list_evaluated(records)
    sent = headline_bytes(records[-1]["bytes_total"])
    cost = f"{format_bytes(sent)} exchanged" if sent else "nothing exchanged"
    if not evaluated:
        return [f"Not evaluated: round {records[-1]['round']}, {cost}."]
    tasks = "training tasks" if split == "train" else "held-out tasks"
    last = read_estimate(evaluated[-1]["evaluation"]["overall"])
    if len(evaluated) == 1:
        ends = f"interval {format_percent(last.low)} to {format_percent(last.high)}"
        return [Strong(format_percent(last.mean)), f" of {tasks} solved {name_round(evaluated[0])}, {ends}."]
    first = read_estimate(evaluated[0]["evaluation"]["overall"])
    start = "" if evaluated[0]["round"] == 0 else f" since round {evaluated[0]['round']}"
    doubt = " The interval includes no change." if gain is not None and gain.low <= 0 <= gain.high else ""
    change = _format_gain(gain, last.mean, first.mean)
    return [
        Strong(f"{format_percent(first.mean)} → {format_percent(last.mean)}"),
        f" on {tasks}{start}, {change}, {cost}.{doubt}",
    ]


def _format_gain(gain: Estimate | None, after: float, before: float) -> str:
    """A paired difference with its interval, beside the two numbers; without one the difference alone."""
    if gain is None:
        return f"{format_points(after, before)} points"
    return f"{format_points(after, before, gain.mean)} points [{format_bound(gain.low)}, {format_bound(gain.high)}]"


def describe_run(result: Record, records: Sequence[Record]) -> str:
    """A description of the run in one line."""
    if not result:
        return f"An unfinished run: {count_things(records[-1]['round'], 'round')} so far."
    config = result["config"]
    partition = config["partition"].get("file") or config["partition"]["sampler"]
    each = config["federation"].get("clients_per_round")
    members = "all clients" if each is None else count_things(each, "client")
    spent = "" if result["privacy"] is None else f"; {format_privacy(result['privacy'])}"
    return (
        f"{result['algorithm']} on {config['env']['id']}, agent {config['agent']['name']},"
        f" {count_things(result['client_split']['clients'], 'client')} ({partition}), {members} in each"
        f" of {count_things(result['rounds'], 'round')},"
        f" seed {result['seed']}{spent}"
    )


# ---- the curve and its references -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neighbour:
    """A finished run in a neighbouring folder, in the same environment and on the same tasks, with another method. `differs`
    lists the settings of learning that differ too."""

    algorithm: str
    success: float
    folder: Path
    record: Record
    differs: Sequence[str] = ()


def read_finished(folder: Path) -> Record:
    """The record of a finished training run together with its configuration; empty while there is none."""
    run = RunFolder(folder)
    if not (run.is_run and run.is_finished) or run.record.kind != "training":
        return {}
    return {**run.record.model_dump(mode="json"), "config": run.config}


def find_neighbours(place: Path, result: Record) -> list[Neighbour]:
    """Runs of the baselines (`COMPARED`) in neighbouring folders, with the same tasks, agent, seed and evaluation."""
    if not result:
        return []
    found, ours = [], result["config"]
    folders = (path for path in sorted(place.resolve().parent.iterdir()) if path != place.resolve())
    for folder in islice(folders, MAX_NEIGHBOURS):
        try:
            other = read_finished(folder)
            if other.get("algorithm") not in COMPARED or other["algorithm"] == result["algorithm"]:
                continue
            theirs, success = other["config"], float(other["final"]["overall"]["success"]["mean"])
            differs = _list_differences(ours, theirs)
            same_tasks = {**ours["evaluation"], "every": 0} == {**theirs["evaluation"], "every": 0}
        except (DataError, OSError, KeyError, TypeError, ValueError):
            continue  # it cannot be read, or was not evaluated
        if same_tasks and 0 <= success <= 1 and all(ours.get(name) == theirs.get(name) for name in _SAME):
            found.append(Neighbour(str(other["algorithm"]), success, folder, other, differs))
    return found


def _list_differences(ours: Record, theirs: Record) -> list[str]:
    """The keys in which two configurations differ, among the settings of learning and the number of rounds."""
    found = _list_unequal("learning", ours["learning"], theirs["learning"])
    found = [key for key in found if key.partition(".sharding")[0] != "learning"]  # it changes no result
    return found + _list_unequal("federation.rounds", ours["federation"]["rounds"], theirs["federation"]["rounds"])


def _list_unequal(key: str, ours: object, theirs: object) -> list[str]:
    """The keys below this one with unequal values; the key itself if the parts have different names."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and ours.get("name") == theirs.get("name"):
        names = sorted({*ours, *theirs})
        return [one for name in names for one in _list_unequal(f"{key}.{name}", ours.get(name), theirs.get(name))]
    return [] if ours == theirs else [key]


def list_references(
    records: Sequence[Record], background: Background | None, neighbours: Sequence[Neighbour]
) -> list[Reference]:
    """The horizontal lines of the curve: the agent before training, the expert, and runs of other methods."""
    found = []
    evaluated = list_evaluated(records)
    if len(evaluated) > 1 and evaluated[0]["round"] == 0:
        found.append(("before training (zero-shot)", read_estimate(evaluated[0]["evaluation"]["overall"]).mean))
    if background is not None and background.expert is not None:
        found.append(("expert", background.expert))
    for name in COMPARED[1:]:
        same = [one for one in neighbours if one.algorithm == name]
        if same:
            label = name if len(same) == 1 else f"{name}, mean of {len(same)} runs"
            other = " (other settings)" if any(one.differs for one in same) else ""
            found.append((label + other, mean([one.success for one in same])))
    return [Reference(f"{name} {format_percent(value)}", value) for name, value in found]


def make_success_chart(records: Sequence[Record], references: Sequence[Reference]) -> Chart:
    """The global model on held-out tasks, and the clients while they trained."""
    estimates = [
        (record["round"], read_estimate(record["evaluation"]["overall"])) for record in list_evaluated(records)
    ]
    line = Series(
        "global model on held-out tasks, with its interval",
        [(number, one.mean) for number, one in estimates],
        band=[(one.low, one.high) for _, one in estimates],
        labels=[
            f"round {number}: {format_share(one.mean, 1)} ({format_share(one.low, 1)} to {format_share(one.high, 1)})"
            for number, one in estimates
        ],
    )
    trained = [record for record in records if record["round"] > 0]
    dots = make_client_dots(trained, "success", "clients in training, own tasks")
    return Chart("Success by round", [dots, line], limits=(0.0, 1.0), references=references, percent=True)


def make_client_dots(records: Sequence[Record], metric: str, name: str = "clients") -> Series:
    """A number of every client of every round."""
    found = [
        (record["round"], numbers[metric], client)
        for record in records
        for client, numbers in record["clients"].items()
        if metric in numbers
    ]
    labels = [f"client {client}, round {number}: {value:.3g}" for number, value, client in found]
    return Series(name, [(number, value) for number, value, _ in found], "dots", labels=labels, colour=2)


# ---- categories -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CategoryResults:
    """The held-out categories of the last evaluation beside the first, worst first; those of each set; a table of all numbers."""

    kind: str
    first: str
    last: str
    rows: Sequence[Dumbbell]
    sets: Mapping[str, Sequence[Dumbbell]]
    note: str
    measures: Sequence[str]
    numbers: Sequence[Sequence[str | tuple[str, str]]]


def list_categories(records: Sequence[Record]) -> CategoryResults | None:
    """The results by category; None for a run that was not evaluated."""
    evaluated = list_evaluated(records)
    if not evaluated:
        return None
    first, last = evaluated[0], evaluated[-1]
    evaluation, before = last["evaluation"], first["evaluation"] if first is not last else {}
    rows = _pair_categories(before, evaluation)
    rows.sort(key=lambda row: (row.after.mean, row.name))
    sets = {
        name: _pair_categories(before.get("sets", {}).get(name, {}), {"categories": dict(sorted(found.items()))})
        for name, below in evaluation.get("sets", {}).items()
        if len(found := below["categories"]) > 1
    }
    groups = [("all tasks", evaluation["overall"]), *sorted(evaluation["categories"].items())]
    measures = list(dict.fromkeys(measure for _, found in groups for measure in found))
    numbers: list[list[str | tuple[str, str]]] = []
    for name, found in groups:
        row: list[str | tuple[str, str]] = [name or "no category"]
        for one in (found.get(measure) for measure in measures):
            row.append("" if one is None else (format_fixed(one["mean"], 3), format_range(one["low"], one["high"], 2)))
        numbers.append(row)
    return CategoryResults(
        "set" if "sets" in evaluation else "category",
        name_round(first),
        name_round(last),
        [_pair("all tasks", before.get("overall"), evaluation["overall"]), *(rows if len(rows) > 1 else [])],
        sets,
        f"{count_things(evaluation['tasks'], 'task')},"
        f" {count_things(evaluation['episodes'], 'episode')}.{_describe_clients(evaluation)}",
        [measure.replace("_", " ") for measure in measures],
        numbers,
    )


def _pair_categories(before: Record, after: Record) -> list[Dumbbell]:
    earlier = before.get("categories", {})
    return [_pair(name, earlier.get(name), found) for name, found in after["categories"].items()]


def _pair(name: str, before: Record | None, after: Record) -> Dumbbell:
    return Dumbbell(name or "no category", None if before is None else read_estimate(before), read_estimate(after))


MAX_MATRIX = 10
"""Clients up to which the report writes out the success of every policy in every variant."""


def _describe_clients(evaluation: Record) -> str:
    """The sentences on evaluations client by client: in its mixture of held-out tasks, in its variant, in others' variants."""
    sentences, at_clients = "", evaluation.get("at_clients") or {}
    for name, where in (("held_out", "by its own mixture of these tasks"), ("own_world", "in its own environment")):
        found = at_clients.get(name, {})
        if found.get("clients"):
            sentences += (
                f" Each of {count_things(found['clients'], 'client')} {where}: mean success {format_fixed(found['mean'], 3)},"
                f" 10th percentile {format_fixed(found['p10'], 3)}, worst {format_fixed(found['worst'], 3)}"
                f" (client {found['worst_client']})."
            )
        if "mixture" in found:
            sentences += f" By its own mixture: mean {format_fixed(found['mixture'], 3)}."
        if "newcomers" in found:
            sentences += f" In variants that no client has: {format_fixed(found['newcomers'], 3)}."
    if (matrix := at_clients.get("every_world", {}).get("matrix")) and len(matrix) <= MAX_MATRIX:
        rows = " | ".join(" ".join(format_fixed(value, 2) for value in row) for row in matrix)
        sentences += f" Every client's policy, in the environments of clients 0 | 1 | ...: {rows}."
    return sentences


# ---- alone and together ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoneClient:
    """A client that trained alone. The gains are the success of the federation's agent minus that of the client's own agent: on
    all tasks, on the categories of which the client holds tasks, and on the others. `differs` lists settings that differ."""

    client: int
    held: frozenset[str]
    steps: int | None
    evaluation: Record
    gain: Estimate | None
    gain_held: Estimate | None
    gain_other: Estimate | None
    differs: Sequence[str] = ()


@dataclass(frozen=True)
class MatrixRow:
    """A category, whether a lone client holds tasks of it, and the estimates of every column (None: not known)."""

    name: str
    held: bool
    cells: Sequence[Estimate | None]


@dataclass(frozen=True)
class AloneAndTogether:
    """Evaluations of the same tasks: at the start, of the clients that trained alone, and of the federation."""

    start: Record | None
    alone: Sequence[LoneClient]
    together: Record
    steps: int | None
    expert: Mapping[str, float]
    expert_overall: float | None

    @property
    def columns(self) -> list[str]:
        start = ["start"] if self.start is not None else []
        expert = ["expert"] if self.expert else []
        return [*start, *(f"client {one.client} alone" for one in self.alone), "together", *expert]

    @property
    def rows(self) -> list[MatrixRow]:
        """All tasks first, then the categories: those that a lone client holds, then the others, each by name."""
        held = {name for one in self.alone for name in one.held}
        names = sorted(self.together["categories"], key=lambda name: (name not in held, name))
        evaluations = [one for one in (self.start, *(one.evaluation for one in self.alone), self.together) if one]

        def row(name: str, found: Sequence[Record | None], expert: float | None) -> MatrixRow:
            cells = [None if part is None else read_estimate(part) for part in found]
            known = None if expert is None else Estimate(expert, expert, expert)
            return MatrixRow(name, name in held, [*cells, *([known] if self.expert else [])])

        return [
            row("all tasks", [one["overall"] for one in evaluations], self.expert_overall),
            *(row(name, [one["categories"].get(name) for one in evaluations], self.expert.get(name)) for name in names),
        ]

    @property
    def sentences(self) -> list[tuple[str, str]]:
        """For each lone client a headline with its gain from federating, and a text on where the difference comes from."""
        together, said = read_estimate(self.together["overall"]).mean, []
        for one in self.alone:
            alone, steps = read_estimate(one.evaluation["overall"]).mean, ""
            if self.steps is not None and one.steps is not None:
                steps = f" after {one.steps} steps of its own (there {self.steps})"
                if self.steps == one.steps:
                    steps = f" after as many steps of its own ({one.steps})"
            headline = (
                f"Together the clients solve {format_percent(together)} of held-out tasks, client {one.client} alone"
                f" {format_percent(alone)}{steps}: {_format_gain(one.gain, together, alone)}."
            )
            said.append((headline, " ".join(filter(None, (self._describe_parts(one), _describe_differences(one))))))
        return said

    def _describe_parts(self, one: LoneClient) -> str:
        if one.gain_held is None or one.gain_other is None:
            return ""
        ends = (one.gain_held.mean, 0.0)
        if len(one.held) == 1 and (name := min(one.held)) in one.evaluation["categories"]:
            found = (self.together["categories"][name], one.evaluation["categories"][name])
            ends = (read_estimate(found[0]).mean, read_estimate(found[1]).mean)
        held, other = _format_gain(one.gain_held, *ends), _format_gain(one.gain_other, one.gain_other.mean, 0.0)
        names = join_names(sorted(one.held))
        return (
            f"Together minus alone: {held} on {names}, which client {one.client} holds, and {other} on everything else."
        )


def _describe_differences(one: LoneClient) -> str:
    """The settings in which both runs differ besides their method; empty if there are none."""
    return f"The two runs also differ in {join_names(one.differs, MAX_NAMED)}." if one.differs else ""


def compare_alone(
    records: Sequence[Record],
    result: Record,
    after: Sequence[ShownEpisode],
    background: Background | None,
    neighbours: Sequence[Neighbour],
) -> AloneAndTogether | None:
    """Compare this run with the neighbouring runs of lone clients; None if there are none, or for `local` and `zero-shot`."""
    evaluated = list_evaluated(records)
    lone = [one for one in neighbours if one.algorithm == "local"]
    if not evaluated or not lone or not result or result["algorithm"] in ("local", "zero-shot"):
        return None
    alone = []
    for one in lone[:MAX_CLIENTS]:
        record = one.record
        client = int(record["config"]["algorithm"].get("client", 0))
        held = frozenset(background.find_mixture(client) if background is not None else ())
        own: Sequence[ShownEpisode] = []
        with contextlib.suppress(DataError):
            own = read_episodes(RunFolder(one.folder).get_evaluation(record["final"]["round"]))
        gain, gain_held, gain_other = (
            measure_gain(
                [each for each in own if (each.trajectory.category in held) in chosen],
                [each for each in after if (each.trajectory.category in held) in chosen],
            )
            for chosen in ((True, False), (True,), (False,))
        )
        steps, final = _count_own_steps(record), record["final"]
        alone.append(LoneClient(client, held, steps, final, gain, gain_held, gain_other, one.differs))
    return AloneAndTogether(
        evaluated[0]["evaluation"] if evaluated[0]["round"] == 0 and len(evaluated) > 1 else None,
        sorted(alone, key=lambda one: one.client),
        evaluated[-1]["evaluation"],
        _count_own_steps(result),
        {} if background is None else background.expert_categories,
        None if background is None else background.expert,
    )


def _count_own_steps(record: Record) -> int | None:
    """Policy steps that one client takes over the run, if it takes part in every round."""
    config = record["config"]
    each = config["algorithm"].get("local_steps")
    everybody = record["algorithm"] == "local" or config["federation"].get("clients_per_round") is None
    return each * record["rounds"] if isinstance(each, int) and everybody else None
