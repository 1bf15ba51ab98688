"""The figures of a suite: learning curves, success against bytes, heterogeneity, clients. They use the report's charts.

Each entry's line or dot has the entry's name, so that the page can highlight the entry whose row is selected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedagentgym.base.numbers import mean
from fedagentgym.experiment.report.charts import Chart, Series
from fedagentgym.experiment.report.markup import format_bytes, format_percent, show
from fedagentgym.leaderboard.curves import average_curves
from fedagentgym.leaderboard.record import CellClients
from fedagentgym.leaderboard.site.entries import Entry, SuiteEntries

MOST_NAMED = 6
"""Number of entries with a colour and a key, the best ones; the others are grey."""
MOST_STRIPS = 20


def render_figures(found: SuiteEntries, ordered: Sequence[Entry]) -> str:
    """All figures for which the suite's entries have numbers; `ordered` is best first."""
    parts = [
        *_render_curves(found, ordered),
        *_render_bytes(ordered),
        *_render_slopes(found, ordered),
    ]
    cards = "".join(parts)
    return (f'<div class="charts">{cards}</div>' if cards else "") + _render_clients(ordered)


def _make_card(chart: Chart, note: str) -> str:
    if not any(one.points for one in chart.series):
        return ""
    return f'<div class="card"><h3>{show(chart.title)}</h3>{chart.to_html()}<p class="note">{show(note)}</p></div>'


def _colour(place: int) -> int:
    return place + 1 if place < MOST_NAMED else 0


def _make_series(
    entry: Entry, place: int, points: Sequence[tuple[float, float]], kind: str, labels: Sequence[str] = ()
) -> Series:
    """An entry's part of a figure: named if it is among the best."""
    title = entry.manifest.entry.title
    return Series(
        title if place < MOST_NAMED else "",
        points,
        kind,
        labels=labels or [f"{title}: {y:.3g}" for _, y in points],
        colour=_colour(place),
        key=entry.name,
    )


# ---- learning curves ------------------------------------------------------------------------------------------------


def _render_curves(found: SuiteEntries, ordered: Sequence[Entry]) -> list[str]:
    scenarios = [name for name in found.suite.scenarios if any(_list_curve(entry, name) for entry in ordered)]
    note = "Success on the split by which the round is chosen, mean over seeds. The best entries have colours."
    most = max((x for entry in ordered for name in scenarios for x, _ in _list_curve(entry, name)), default=0.0)
    unit, name_of_unit = (1000.0, "training episodes, thousands") if most >= 10_000 else (1.0, "training episodes")
    return [
        _make_card(
            Chart(
                f"Learning curves: {name}" if len(found.suite.scenarios) > 1 else "Learning curves",
                _stack(
                    _make_series(entry, place, [(x / unit, y) for x, y in _list_curve(entry, name)], "line")
                    for place, entry in enumerate(ordered)
                ),
                x=name_of_unit,
                limits=(0.0, 1.0),
                percent=True,
            ),
            note,
        )
        for name in scenarios
    ]


def _stack(series: Iterable[Series]) -> list[Series]:
    """Grey lines first, so that coloured ones are drawn over them."""
    return sorted(series, key=lambda one: one.colour != 0)


def _list_curve(entry: Entry, scenario: str) -> list[tuple[float, float]]:
    """Mean success over the seeds that evaluated the same rounds."""
    curves = [one.points for one in entry.curves.cells if one.scenario == scenario]
    return [(point.episodes, point.mean) for point in average_curves(curves)]


# ---- success against bytes, and heterogeneity -------------------------------------------------------------------------


def _render_bytes(ordered: Sequence[Entry]) -> list[str]:
    series = []
    for place, entry in enumerate(ordered):
        overall = entry.overall
        if "bytes" not in overall or "success" not in overall:
            continue
        point = (overall["bytes"].mean / 1e6, overall["success"].mean)
        label = f"{entry.manifest.entry.title}: {format_percent(point[1], 1)}, {format_bytes(1e6 * point[0])}"
        series.append(_make_series(entry, place, [point], "dots", [label]))
    if not series:
        return []
    chart = Chart("Success against bytes", _stack(series), x="MB in all, mean over seeds", plane=True, percent=True)
    return [_make_card(chart, "Bytes sent and received by all clients until the end. Further left is cheaper.")]


def _render_slopes(found: SuiteEntries, ordered: Sequence[Entry]) -> list[str]:
    """One chart for each axis of heterogeneity: success from the uniform division to the most heterogeneous."""
    axes = dict.fromkeys(one.axis for one in found.suite.scenarios.values() if one.axis and one.level is not None)
    cards = []
    for axis in axes:
        scenarios = [(one.level, name) for name, one in found.suite.scenarios.items() if one.axis == axis]
        levels = sorted((level, name) for level, name in scenarios if level is not None)
        if len(levels) < 2:
            continue
        series = []
        for place, entry in enumerate(ordered):
            measured = entry.manifest.by_scenario
            points = [
                (float(at), measured[name]["success"].mean)
                for at, (_, name) in enumerate(levels)
                if name in measured and "success" in measured[name]
            ]
            series.append(_make_series(entry, place, points, "line"))
        names = ["even" if level == 0 else f"{level:g}" for level, _ in levels]
        chart = Chart(
            f"Heterogeneity: {axis}",
            _stack(series),
            x="level",
            limits=(0.0, 1.0),
            percent=True,
            x_labels=names,
        )
        cards.append(_make_card(chart, "Success as clients' tasks become more different. A flat line means no loss."))
    return cards


# ---- clients ----------------------------------------------------------------------------------------------------------


def _render_clients(ordered: Sequence[Entry]) -> str:
    """A strip for each entry: every client a tick, by the success on its own mixture of tasks."""
    strips = []
    for entry in ordered:
        shares = _list_clients(entry.clients.cells)
        if len(shares) > 1:
            strips.append(_render_strip(entry, shares))
    if not strips:
        return ""
    ticks = "".join(f'<span style="left:{tick}%">{tick} %</span>' for tick in (0, 25, 50, 75, 100))
    more = f" The first {MOST_STRIPS} of {len(strips)} entries." if len(strips) > MOST_STRIPS else ""
    return (
        '<div class="card"><h3>Clients</h3><div class="dumbbells strips">'
        f'{"".join(strips[:MOST_STRIPS])}<div></div><div class="axis">{ticks}</div><div></div></div>'
        '<p class="note">Each tick is a client: the success of the ranked model on its own mixture of held-out tasks, mean over'
        f" scenarios and seeds. The dot is the mean, the ring the worst client.{more}</p></div>"
    )


def _list_clients(cells: Sequence[CellClients]) -> list[float]:
    """The success of every client, in the mean over the cells in which it has one."""
    found: dict[int, list[float]] = {}
    for cell in cells:
        for client in cell.clients:
            if client.success is not None:
                found.setdefault(client.client, []).append(client.success)
    return [mean(values) for _, values in sorted(found.items())]


def _render_strip(entry: Entry, shares: Sequence[float]) -> str:
    ticks = "".join(f'<i class="tick" style="left:{100 * share:.2f}%"></i>' for share in shares)
    middle, worst = mean(shares), min(shares)
    told = f"{show(entry.manifest.entry.title)}: mean {format_percent(middle)}, worst client {format_percent(worst)}"
    return (
        f'<div class="label" data-key="{show(entry.name)}">{show(entry.manifest.entry.title)}</div>'
        f'<div class="track" role="img" aria-label="{told}" title="{told}">{ticks}'
        f'<i class="before" style="left:{100 * worst:.2f}%"></i><i class="after" style="left:{100 * middle:.2f}%"></i></div>'
        f'<div class="value">{format_percent(middle)} <small>{format_percent(worst)}</small></div>'
    )
