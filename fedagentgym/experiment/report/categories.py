"""Before and after, category by category: dumbbells with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedagentgym.experiment.report.markup import (
    fold,
    format_bound,
    format_percent,
    format_points,
    render_table,
    show,
)
from fedagentgym.learning.evaluation import Estimate

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Dumbbell:
    """A share before and after, each with its interval; `before` is None where there is only one value.

    `change` is their paired difference, if it was computed: it is written with its interval, and both ends are drawn with theirs.
    """

    name: str
    before: Estimate | None
    after: Estimate
    change: Estimate | None = None


def render_dumbbells(rows: Sequence[Dumbbell], first: str, last: str) -> str:
    """A line for each row, on an axis from 0 to 100 %. `first` and `last` name the two ends."""
    lines = "".join(_render_line(row) for row in rows)
    paired = any(row.before is not None for row in rows)
    with_interval = ", with its interval" if any(row.change is not None for row in rows) else ""
    key = f'<li class="c0"><i class="open"></i>{show(first)}{with_interval}</li>' if paired else ""
    ticks = "".join(f'<span style="left:{tick}%">{tick} %</span>' for tick in (0, 25, 50, 75, 100))
    return (
        f'<ul class="key">{key}<li class="c1"><i class="dots"></i>{show(last)}, with its interval</li></ul>'
        f'<div class="dumbbells">{lines}<div></div><div class="axis">{ticks}</div><div></div></div>'
    )


def _render_line(row: Dumbbell) -> str:
    after = row.after
    parts = [_draw_interval(after, "interval")]
    told = f"{format_percent(after.mean)}"
    if row.before is not None:
        if row.change is not None:
            parts.append(_draw_interval(row.before, "interval of-first"))
        low, high = sorted((row.before.mean, after.mean))
        way = "up" if after.mean >= row.before.mean else "down"
        parts.append(f'<i class="bar {way}" style="left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%"></i>')
        parts.append(f'<i class="before" style="left:{100 * row.before.mean:.2f}%"></i>')
        told = f"{format_percent(row.before.mean)} → {told}"
    parts.append(f'<i class="after" style="left:{100 * after.mean:.2f}%"></i>')
    spoken = f"{show(row.name)}: {told}, interval {format_percent(after.low)} to {format_percent(after.high)}"
    change = "" if row.before is None else f" <small>{_tell_change(row.before, after, row.change)}</small>"
    return (
        f'<div class="label">{show(row.name)}</div><div class="track" role="img" aria-label="{spoken}"'
        f' title="{spoken}">{"".join(parts)}</div><div class="value">{told}{change}</div>'
    )


def _draw_interval(found: Estimate, kind: str) -> str:
    return f'<i class="{kind}" style="left:{100 * found.low:.2f}%;width:{100 * (found.high - found.low):.2f}%"></i>'


def _tell_change(before: Estimate, after: Estimate, change: Estimate | None) -> str:
    if change is None:
        return format_points(after.mean - before.mean)
    return f"{format_points(change.mean)} [{format_bound(change.low)}, {format_bound(change.high)}]"


def render_categories(records: Sequence[Record]) -> str:
    """The held-out categories of the last evaluation beside those of the first, worst first, and all numbers below."""
    judged = [record for record in records if "evaluation" in record]
    if not judged:
        return ""
    first, last = judged[0], judged[-1]
    evaluation = last["evaluation"]
    before = first["evaluation"] if first is not last else None
    everything = [_pair("all tasks", None if before is None else before["overall"], evaluation["overall"])]
    rows = [
        _pair(name, None if before is None else before["categories"].get(name), found)
        for name, found in evaluation["categories"].items()
    ]
    rows.sort(key=lambda row: (row.after.mean, row.name))
    kind = "evaluation sets" if "sets" in evaluation else "categories"
    shown = rows if len(rows) > 1 else []
    parts = [
        f"<h2>Held-out tasks by {'set' if 'sets' in evaluation else 'category'}</h2>"
        f'<div class="card">{render_dumbbells([*everything, *shown], _name_round(first), _name_round(last))}',
        f'<p class="note">{evaluation["tasks"]:,} tasks, {evaluation["episodes"]:,} episodes.{_tell_clients(evaluation)}</p>',
    ]
    for name, below in evaluation.get("sets", {}).items():
        below_first = {} if before is None else before.get("sets", {}).get(name, {}).get("categories", {})
        inner = [
            _pair(one, below_first.get(one) if before is not None else None, found)
            for one, found in sorted(below["categories"].items())
        ]
        if len(inner) > 1:
            parts.append(fold(f"{name} by category", render_dumbbells(inner, _name_round(first), _name_round(last))))
    parts.append(fold(f"All numbers of the {kind}", _render_numbers(evaluation)))
    return "".join([*parts, "</div>"])


def _pair(name: str, before: Record | None, after: Record) -> Dumbbell:
    found = None if before is None else Estimate(**before["success"])
    return Dumbbell(name or "no category", found, Estimate(**after["success"]))


def _name_round(record: Record) -> str:
    return "before training" if record["round"] == 0 else f"after round {record['round']}"


def _tell_clients(evaluation: Record) -> str:
    """The global model on the clients' own mixtures of the held-out tasks, if it was evaluated."""
    found = evaluation.get("clients") or {}
    if not found.get("clients"):
        return ""
    return (
        f" Each of {found['clients']:,} clients by its own mixture of these tasks: mean success {found['mean']:.3f},"
        f" 10th percentile {found['p10']:.3f}, worst {found['worst']:.3f} (client {found['worst_client']})."
    )


def _render_numbers(evaluation: Record) -> str:
    groups = [("all tasks", evaluation["overall"]), *sorted(evaluation["categories"].items())]
    measures = list(dict.fromkeys(name for _, found in groups for name in found))
    rows = [
        [show(name or "no category"), *(_format_estimate(found.get(measure)) for measure in measures)]
        for name, found in groups
    ]
    heads = [("category", False), *((measure.replace("_", " "), True) for measure in measures)]
    return render_table(heads, rows, "All numbers by category")


def _format_estimate(found: Record | None) -> str:
    if found is None:
        return ""
    return f"{found['mean']:.3f} <small>{found['low']:.2f} to {found['high']:.2f}</small>"
