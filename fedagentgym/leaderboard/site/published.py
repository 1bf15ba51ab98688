"""Numbers from papers, next to those that were measured here. They are cited with a source, and never ranked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fedagentgym.experiment.report.markup import fold, render_table, show

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Paper:
    """A paper with its numbers, in the order of its tables."""

    name: str
    about: Mapping[str, Any]
    rows: tuple[Row, ...]


@cache
def read_published() -> tuple[Paper, ...]:
    """All papers of the package's data."""
    plain = json.loads((files("fedagentgym.leaderboard.site") / "published.json").read_text("utf-8"))
    return tuple(
        Paper(name, about, tuple(row for row in plain["results"] if row["paper"] == name))
        for name, about in plain["papers"].items()
    )


def find_paper(name: str | None) -> Paper | None:
    """The paper of this name; case is ignored."""
    return next((paper for paper in read_published() if name and paper.name.lower() == name.lower()), None)


def render_paper(paper: Paper) -> str:
    """Every table of a paper, folded."""
    about = paper.about
    told = ", ".join(str(about[name]) for name in ("venue", "arxiv") if about.get(name))
    repeats = f" Means of {about['repeats']} runs." if about.get("repeats") else ""
    tables = "".join(_render_table(paper, name) for name in dict.fromkeys(row["table"] for row in paper.rows))
    return (
        f'<p class="about"><b>{show(paper.name)}</b>: {show(about["title"])}{f" ({show(told)})" if told else ""}.{repeats}'
        f" {len(paper.rows)} numbers as printed, none of them measured here.</p>{tables}"
    )


def _render_table(paper: Paper, name: str) -> str:
    rows = [row for row in paper.rows if row["table"] == name]
    columns = list(dict.fromkeys((row["dataset"], row["metric"]) for row in rows))
    cells: dict[tuple[str, str, str], dict[tuple[str, str], str]] = {}
    notes: list[str] = []
    for row in rows:
        identity = (row["model"], row["method"], _tell_setting(row))
        column = (row["dataset"], row["metric"])
        cells.setdefault(identity, {})[column] = _format(row, _count_digits(rows, column), notes)
    metrics = {metric for _, metric in columns}
    heads = [("model", False), ("method", False), ("setting", False)]
    heads += [(dataset if len(metrics) == 1 else f"{dataset}, {metric}", True) for dataset, metric in columns]
    body = [[*map(show, identity), *(found.get(column, "") for column in columns)] for identity, found in cells.items()]
    unit = ", ".join(sorted({str(row["unit"]) for row in rows}))
    one = f"{metrics.pop()}, " if len(metrics) == 1 else ""
    flags = "".join(f"<li><sup>{place}</sup> {show(note)}</li>" for place, note in enumerate(notes, start=1))
    below = f'<ul class="flags">{flags}</ul>' if notes else ""
    return fold(
        f"{paper.name}, {name}: {len(rows)} numbers",
        f'<p class="note"><span class="badge">published</span> {show(one)}unit: {show(unit)}.</p>'
        f"{render_table(heads, body, f'{paper.name}, {name}')}{below}",
    )


def _tell_setting(row: Row) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in row.get("setting", {}).items())


def _count_digits(rows: Sequence[Row], column: tuple[str, str]) -> int:
    """Digits after the point in a column: a value keeps its printed zeros."""
    texts = (f"{row['value']:g}" for row in rows if (row["dataset"], row["metric"]) == column)
    return max(len(text.partition(".")[2]) for text in texts)


def _format(row: Row, digits: int, notes: list[str]) -> str:
    spread = f" <small>± {row['std']:g}</small>" if "std" in row else ""
    flag = row.get("flag")
    if flag is not None and flag not in notes:
        notes.append(flag)
    mark = "" if flag is None else f"<sup>{notes.index(flag) + 1}</sup>"
    return f"{row['value']:.{digits}f}{spread}{mark}"


def describe_cautions() -> Sequence[str]:
    """Remarks about the printed numbers."""
    plain = json.loads((files("fedagentgym.leaderboard.site") / "published.json").read_text("utf-8"))
    notes: list[str] = plain["notes"]
    return notes
