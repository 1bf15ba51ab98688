"""Alone and together: who can do what before training, after one client has trained by itself, and after all have together.

A run with a finished `local` run beside it, alike in everything but the method, gets this section. Both are judged on the same
episodes, so their difference is taken task by task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedagentgym.base.errors import DataError, join_names
from fedagentgym.experiment.report.background import Background
from fedagentgym.experiment.report.episodes import ShownEpisode, read_episodes
from fedagentgym.experiment.report.markup import format_bound, format_percent, format_points, render_table, show
from fedagentgym.experiment.report.results import Neighbour, measure_gain
from fedagentgym.learning.evaluation import Estimate

Record = Mapping[str, Any]
MOST_CLIENTS = 4
"""Clients that trained alone, each of which gets a column."""


@dataclass(frozen=True)
class LoneClient:
    """A client that trained alone. The gains are what the federation's agent solves more than its own: of all tasks, of the
    categories that it holds tasks of, and of the others."""

    client: int
    held: frozenset[str]
    steps: int | None
    evaluation: Record
    gain: Estimate | None
    gain_held: Estimate | None
    gain_other: Estimate | None


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
    def categories(self) -> list[str]:
        """Those that a lone client holds, then the others, each by name."""
        held = {name for one in self.alone for name in one.held}
        return sorted(self.together["categories"], key=lambda name: (name not in held, name))


def compare_alone(
    records: Sequence[Record],
    result: Record,
    after: Sequence[ShownEpisode],
    background: Background | None,
    neighbours: Sequence[Neighbour],
) -> AloneAndTogether | None:
    """What the runs beside this one show; None where no client trained alone, or this run has only one itself."""
    judged = [record for record in records if "evaluation" in record]
    if not judged or not result or result["algorithm"] in ("local", "zero-shot"):
        return None
    lone = [one for one in neighbours if one.algorithm == "local"]
    alone = [_compare_client(one, after, background) for one in lone[:MOST_CLIENTS]]
    return (
        AloneAndTogether(
            judged[0]["evaluation"] if judged[0]["round"] == 0 and len(judged) > 1 else None,
            sorted(alone, key=lambda one: one.client),
            judged[-1]["evaluation"],
            _count_own_steps(result),
            {} if background is None else background.expert_categories,
            None if background is None else background.expert,
        )
        if alone
        else None
    )


def _compare_client(neighbour: Neighbour, after: Sequence[ShownEpisode], background: Background | None) -> LoneClient:
    record = neighbour.record
    client = int(record["config"]["algorithm"].get("client", 0))
    held = frozenset(background.find_mixture(client) if background is not None else ())
    try:
        own = read_episodes(neighbour.folder / "evaluation" / f"{record['final']['round']:04d}.jsonl")
    except DataError:
        own = []

    def gain(chosen: Callable[[str], bool]) -> Estimate | None:
        first, second = ([one for one in part if chosen(one.trajectory.category)] for part in (own, after))
        return measure_gain(first, second)

    return LoneClient(
        client,
        held,
        _count_own_steps(record),
        record["final"],
        gain(lambda _: True),
        gain(lambda category: category in held),
        gain(lambda category: category not in held),
    )


def _count_own_steps(record: Record) -> int | None:
    """Policy steps that one client takes over the run, if it takes part in every round."""
    config = record["config"]
    each = config["algorithm"].get("local_steps")
    everybody = record["algorithm"] == "local" or config["federation"].get("clients_per_round") is None
    return each * record["rounds"] if isinstance(each, int) and everybody else None


# ---- words ----------------------------------------------------------------------------------------------------------


def tell_gap(found: AloneAndTogether, one: LoneClient) -> str:
    """The headline: what federating is worth to this client."""
    together, alone = _read(found.together["overall"]), _read(one.evaluation["overall"])
    difference = Estimate(together.mean - alone.mean, float("nan"), float("nan")) if one.gain is None else one.gain
    return (
        f"Together the clients solve {format_percent(together.mean)} of unseen tasks, client {one.client} alone"
        f" {format_percent(alone.mean)}{_tell_steps(found.steps, one.steps)}: {_tell_gain(difference)}."
    )


def tell_parts(one: LoneClient) -> str:
    """Where the difference comes from."""
    if one.gain_held is None or one.gain_other is None:
        return ""
    return (
        f"Together less alone, on {join_names(sorted(one.held))}, which client {one.client} holds: {_tell_gain(one.gain_held)};"
        f" on all else: {_tell_gain(one.gain_other)}."
    )


def _tell_steps(together: int | None, alone: int | None) -> str:
    if together is None or alone is None:
        return ""
    if together == alone:
        return f" after as many steps of its own ({alone})"
    return f" after {alone} steps of its own (there {together})"


def _tell_gain(gain: Estimate) -> str:
    interval = "" if gain.low != gain.low else f" [{format_bound(gain.low)}, {format_bound(gain.high)}]"
    return f"{format_points(gain.mean)} points{interval}"


# ---- the matrix -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatrixRow:
    """A category, whether a lone client holds tasks of it, and the estimates of every column (None: not known)."""

    name: str
    held: bool
    cells: Sequence[Estimate | None]


def list_columns(found: AloneAndTogether) -> list[str]:
    start = ["start"] if found.start is not None else []
    expert = ["expert"] if found.expert else []
    return [*start, *(f"client {one.client} alone" for one in found.alone), "together", *expert]


def list_rows(found: AloneAndTogether) -> list[MatrixRow]:
    """All tasks first, then category by category."""
    held = {name for one in found.alone for name in one.held}
    evaluations = [one for one in (found.start, *(one.evaluation for one in found.alone), found.together) if one]

    def row(name: str, pick: Callable[[Record], Record | None], expert: float | None) -> MatrixRow:
        cells = [None if (part := pick(one)) is None else _read(part) for one in evaluations]
        known = None if expert is None else Estimate(expert, expert, expert)
        return MatrixRow(name, name in held, [*cells, *([known] if found.expert else [])])

    everything = row("all tasks", lambda one: one["overall"], found.expert_overall)
    rows = [
        row(name, lambda one, name=name: one["categories"].get(name), found.expert.get(name))  # type: ignore[misc]
        for name in found.categories
    ]
    return [everything, *rows]


def _read(part: Record) -> Estimate:
    success = part["success"]
    return Estimate(float(success["mean"]), float(success["low"]), float(success["high"]))


def render_alone(found: AloneAndTogether | None) -> str:
    """The section of the page; empty for a run without a client that trained alone."""
    if found is None:
        return ""
    sentences = "".join(
        f'<p class="result">{show(tell_gap(found, one))}</p><p class="about">{show(tell_parts(one))}</p>'
        for one in found.alone
    )
    heads = [("unseen tasks", False), *((name, True) for name in list_columns(found))]
    rows = [
        [f"{show(row.name)}{' <small>its own</small>' if row.held else ''}", *map(_render_cell, row.cells)]
        for row in list_rows(found)
    ]
    table = render_table(heads, rows, "Success by category: at the start, alone, together")
    note = "Success with its interval. Everybody is judged on the same tasks with the same seeds."
    return f'<h2>Alone and together</h2>{sentences}<div class="card">{table}<p class="note">{note}</p></div>'


def _render_cell(cell: Estimate | None) -> str:
    if cell is None:
        return ""
    interval = "" if cell.low == cell.high else f" <small>{format_bound(cell.low)} to {format_bound(cell.high)}</small>"
    return f'<span class="share" style="--share:{cell.mean:.3f}">{format_percent(cell.mean)}</span>{interval}'
