"""The federation on the report: the tasks of each client, its participation, and its success."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedagentgym.base.numbers import mean
from fedagentgym.experiment.report.background import Background
from fedagentgym.experiment.report.markup import fold, format_percent, render_table, show

Record = Mapping[str, Any]
MOST_ROWS = 60
"""Clients in the figure, and the maximum in the open table."""
FIRST_ROWS = 8
MOST_IN_TABLE = 1000
COLOURS = 8
"""Colours of categories; further ones share the last."""


@dataclass(frozen=True)
class ClientRow:
    """One client over the run. `own` is the success of the global model on the client's own mixture of held-out tasks."""

    client: int
    mixture: Mapping[str, int]
    rounds: Mapping[int, float | None]
    """The rounds in which it took part, with its success in training if it reported one."""
    failed: tuple[int, ...]
    own: float | None
    update_norm: float | None

    @property
    def tasks(self) -> int:
        return sum(self.mixture.values())

    @property
    def trained(self) -> float | None:
        """The last success in training that it reported."""
        told = [value for _, value in sorted(self.rounds.items()) if value is not None]
        return told[-1] if told else None


def collect_clients(records: Sequence[Record], background: Background | None) -> list[ClientRow]:
    """All clients that are known from the background or from the rounds, in the order of their numbers."""
    success = _find_success(records)
    known = set(range(len(background.counts))) if background is not None else set()
    known |= {client for record in records for client in record["participants"]}
    return [_collect_client(client, records, background, success) for client in sorted(known)]


def _collect_client(
    client: int, records: Sequence[Record], background: Background | None, success: Mapping[str, float]
) -> ClientRow:
    mixture = background.find_mixture(client) if background is not None else {}
    covered = {name: count for name, count in mixture.items() if name in success}
    own = sum(count * success[name] for name, count in covered.items()) / sum(covered.values()) if covered else None
    took_part = [record for record in records if client in record["participants"]]
    told = {record["round"]: record["clients"].get(str(client), {}) for record in took_part}
    norms = [numbers["update_norm"] for numbers in told.values() if "update_norm" in numbers]
    failed = {
        record["round"] for record in took_part if any(failure["client"] == client for failure in record["failures"])
    }
    return ClientRow(
        client,
        mixture,
        {number: numbers.get("success") for number, numbers in told.items()},
        tuple(sorted(failed)),
        own,
        mean(norms) if norms else None,
    )


def _find_success(records: Sequence[Record]) -> dict[str, float]:
    """The held-out success in every category of the last evaluation; a set's name represents the whole set."""
    judged = [record["evaluation"] for record in records if "evaluation" in record]
    if not judged:
        return {}
    groups = [judged[-1]["categories"], *(below["categories"] for below in judged[-1].get("sets", {}).values())]
    return {name: found["success"]["mean"] for group in reversed(groups) for name, found in group.items()}


def render_federation(records: Sequence[Record], background: Background | None) -> str:
    """The figure and the table; empty for a run without clients."""
    rows = collect_clients(records, background)
    if not rows:
        return ""
    total = max(len(rows), background.clients if background is not None else 0)
    if len(rows) == 1 and total == 1:
        return ""
    shown = sorted(rows, key=lambda row: (-len(row.rounds), row.client))[:MOST_ROWS]
    shown.sort(key=lambda row: row.client)
    names = _order_categories(rows, background)
    last = records[-1]["round"]
    parts = [
        f'<h2>The federation</h2><p class="about">{_describe(rows, total, last)}</p>',
        f'<div class="card">{_render_figure(shown, names, last)}',
    ]
    if len(shown) < total:
        parts.append(f'<p class="note">{len(shown)} of {total:,} clients: those that took part most often.</p>')
    parts.append("</div>")
    parts.append(_render_table(rows, names))
    return "".join(parts)


def _describe(rows: Sequence[ClientRow], total: int, last: int) -> str:
    members = sum(1 for row in rows if row.rounds)
    told = [f"{members:,} of {total:,} clients took part in {last} rounds." if last else f"{total:,} clients."]
    own = sorted((row.own, row.client) for row in rows if row.own is not None)
    if len(own) > 1:
        middle = mean([value for value, _ in own])
        told.append(
            f"On each client's own mixture of held-out tasks the global model solves {format_percent(middle)} on average,"
            f" {format_percent(own[0][0])} at the worst client ({own[0][1]}) and {format_percent(own[-1][0])} at the best"
            f" ({own[-1][1]})."
        )
    return " ".join(told)


# ---- the figure -----------------------------------------------------------------------------------------------------


def _order_categories(rows: Sequence[ClientRow], background: Background | None) -> list[str]:
    if background is not None and background.categories:
        return list(background.categories)
    return sorted({name for row in rows for name in row.mixture})


def _render_figure(shown: Sequence[ClientRow], names: Sequence[str], last: int) -> str:
    mixtures = any(row.mixture for row in shown)
    size = "small" if len(shown) > 24 else ""
    lines = "".join(
        f'<div class="who">{row.client}</div>'
        + (render_mixture(row, names) if mixtures else "")
        + (_render_rounds(row, last) if last else "")
        for row in shown
    )
    heads = '<div class="who head">client</div>'
    heads += '<div class="head">holds</div>' if mixtures else ""
    heads += f'<div class="head span"><span>took part in round 1</span><span>{last}</span></div>' if last > 1 else ""
    heads += '<div class="head">took part</div>' if last == 1 else ""
    columns = f"columns-{1 + mixtures + (last > 0)}"
    note = (
        "A block is a round in which the client took part, the darker the more of its own tasks it solved while it trained."
        if last
        else ""
    )
    marks = ' <span class="failed-key"></span> A call that failed.' if any(row.failed for row in shown) else ""
    return (
        f"{_render_category_key(names) if mixtures else ''}"
        f'<div class="federation {columns} {size}">{heads}{lines}</div><p class="note">{note}{marks}</p>'
    )


def _render_category_key(names: Sequence[str]) -> str:
    items = "".join(
        f'<li class="m{min(place, COLOURS - 1)}"><i></i>{show(name or "no category")}</li>'
        for place, name in enumerate(names[: COLOURS - 1 if len(names) > COLOURS else COLOURS])
    )
    more = len(names) - COLOURS + 1
    other = f'<li class="m{COLOURS - 1}"><i></i>{more} more</li>' if len(names) > COLOURS else ""
    return f'<ul class="key">{items}{other}</ul>'


def render_mixture(row: ClientRow, names: Sequence[str]) -> str:
    """A bar of the client's categories, each as long as its share."""
    if not row.tasks:
        return '<div class="mixture empty"></div>'
    shares = [(place, name, row.mixture[name]) for place, name in enumerate(names) if row.mixture.get(name)]
    told = ", ".join(f"{name or 'no category'} {count}" for _, name, count in shares)
    blocks = "".join(
        f'<i class="m{min(place, COLOURS - 1)}" style="flex-grow:{count}" title="{show(name)}: {count} of {row.tasks}"></i>'
        for place, name, count in shares
    )
    return f'<div class="mixture" role="img" aria-label="client {row.client} holds {show(told)}">{blocks}</div>'


def _render_rounds(row: ClientRow, last: int) -> str:
    blocks = "".join(
        f'<rect class="{"failed" if number in row.failed else "round"}" x="{number - 0.96:.2f}" y="0" width=".92" height="1"'
        f' fill-opacity="{_darken(success)}"><title>client {row.client}, round {number}{_tell(success)}</title></rect>'
        for number, success in sorted(row.rounds.items())
        if number
    )
    rounds = ", ".join(str(number) for number in sorted(row.rounds)) or "none"
    return (
        f'<svg class="rounds" viewBox="0 0 {last} 1" preserveAspectRatio="none" role="img"'
        f' aria-label="client {row.client} took part in rounds {rounds}">{blocks}</svg>'
    )


def _darken(success: float | None) -> str:
    return f"{0.3 + 0.7 * min(max(success, 0.0), 1.0):.2f}" if success is not None else "0.6"


def _tell(success: float | None) -> str:
    return f": success {format_percent(success)} in training" if success is not None else ""


# ---- the table ------------------------------------------------------------------------------------------------------


def _render_table(rows: Sequence[ClientRow], names: Sequence[str]) -> str:
    worst_first = sorted(
        rows,
        key=lambda row: (
            row.own if row.own is not None else 2.0,
            row.trained if row.trained is not None else 2.0,
            row.client,
        ),
    )
    columns = [column for column in _COLUMNS if any(column.write(row) for row in rows)]
    heads = [("client", True), *((column.name, True) for column in columns), ("tasks", True), ("mixture", False)]
    cells = [
        [str(row.client), *(column.write(row) for column in columns), *_format_holdings(row, names)]
        for row in worst_first
    ]
    ranked = any(row.own is not None or row.trained is not None for row in rows)
    order = "worst first" if ranked else "by number"
    table = render_table(heads, cells[:FIRST_ROWS], f"Clients, {order}")
    rest = ""
    if len(cells) > FIRST_ROWS:
        more = cells[FIRST_ROWS : FIRST_ROWS + MOST_IN_TABLE]
        rest = fold(f"{len(cells) - FIRST_ROWS:,} more clients", render_table(heads, more, "Further clients"))
    return f'<div class="card"><h3>Clients, {order}</h3>{table}{rest}</div>'


def _format_holdings(row: ClientRow, names: Sequence[str]) -> list[str]:
    most = Counter(row.mixture).most_common(1)
    largest = f" <small>{show(most[0][0])} {format_percent(most[0][1] / row.tasks)}</small>" if most else ""
    holdings = f'<div class="holdings">{render_mixture(row, names)}{largest}</div>' if row.mixture else ""
    return [f"{row.tasks:,}" if row.tasks else "", holdings]


@dataclass(frozen=True)
class _Column:
    """A column of the table; omitted if it is empty for all clients."""

    name: str
    write: Callable[[ClientRow], str]


def _write_share(share: float | None) -> str:
    return "" if share is None else format_percent(share)


_COLUMNS = (
    _Column("success, own mixture", lambda row: _write_share(row.own)),
    _Column("success in training", lambda row: _write_share(row.trained)),
    _Column("rounds", lambda row: str(len(row.rounds)) if row.rounds else ""),
    _Column("update norm", lambda row: "" if row.update_norm is None else f"{row.update_norm:.3g}"),
    _Column("failed calls", lambda row: str(len(row.failed)) if row.failed else ""),
)
