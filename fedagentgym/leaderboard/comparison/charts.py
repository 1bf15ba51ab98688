"""Learning curves of what is compared: over rounds, training episodes and megabytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedagentgym.experiment.report.charts import Chart, Series
from fedagentgym.experiment.report.markup import show
from fedagentgym.leaderboard.compare import Comparison
from fedagentgym.leaderboard.comparison.tables import COLOURS, get_colour
from fedagentgym.leaderboard.curves import LearningCurve, MeanPoint, average_curves
from fedagentgym.leaderboard.site.tables import find_metric, format_value

Averaged = Mapping[str, Sequence[MeanPoint]]
"""The mean curve of every entry that has one."""


def render_curves(found: Comparison, curves: Mapping[str, Sequence[LearningCurve]]) -> str:
    """The charts of every scenario; entries without a curve are named."""
    metric = find_metric(found.measure)
    scenarios = dict.fromkeys(one.scenario for each in curves.values() for one in each)
    by_scenario = {scenario: _average(found, curves, scenario) for scenario in scenarios}
    drawn = {name for averaged in by_scenario.values() for name in averaged}
    missing = ", ".join(name for name in found.names if name not in drawn)
    told = f"No learning curve of {metric.title} is recorded for {missing}." if missing else ""
    if not drawn:
        return (
            f'<h2>Learning curves</h2><p class="about">None of these has a recorded curve of {show(metric.title)}.</p>'
        )
    note = (
        f"{metric.title.capitalize()} in the evaluations of each run; in packed results on the split val, by which their round"
        " was chosen. Lines are means over seeds. Bands reach from the lowest to the highest seed; of a single seed they are"
        f" its interval. {told}"
    )
    charts = "".join(_render_scenario(found, scenario, averaged) for scenario, averaged in by_scenario.items())
    return f'<h2>Learning curves</h2>{charts}<p class="note">{show(note)}</p>'


def _average(found: Comparison, curves: Mapping[str, Sequence[LearningCurve]], scenario: str) -> Averaged:
    averaged = {
        name: average_curves([one.points for one in curves.get(name, ()) if one.scenario == scenario], found.measure)
        for name in found.names
    }
    return {name: points for name, points in averaged.items() if points}


def _render_scenario(found: Comparison, scenario: str, averaged: Averaged) -> str:
    """By round in the whole width; by episodes and bytes beside each other, where these tell more."""
    if not averaged:
        return ""
    of = f" in {scenario}" if scenario else ""
    wide = _make_card(_make_chart(found, f"By round{of}", "round", averaged, lambda point: point.round), " wide")
    cards = []
    if _have_other_episodes(averaged):
        chart = _make_chart(
            found, f"By training episodes{of}", "thousand episodes", averaged, lambda point: point.episodes / 1000
        )
        cards.append(_make_card(chart))
    sent = {name: points for name, points in averaged.items() if points[-1].bytes > 0}
    if sent:
        silent = ", ".join(name for name in averaged if name not in sent)
        axis = "MB sent and received" + (f" ({silent}: none)" if silent else "")
        cards.append(_make_card(_make_chart(found, f"By bytes{of}", axis, sent, lambda point: point.bytes / 1e6)))
    return wide + (f'<div class="charts">{"".join(cards)}</div>' if cards else "")


def _have_other_episodes(averaged: Averaged) -> bool:
    """Whether the curves of entries lie otherwise over episodes than over rounds."""
    shares = {point.episodes / point.round for points in averaged.values() for point in points if point.round}
    return len(shares) > 1


def _make_card(chart: Chart, kind: str = "") -> str:
    return f'<div class="card{kind}"><h3>{show(chart.title)}</h3>{chart.to_html()}</div>'


def _make_chart(
    found: Comparison, title: str, axis: str, averaged: Averaged, get_x: Callable[[MeanPoint], float]
) -> Chart:
    metric = find_metric(found.measure)
    is_share = metric.unit == "share"
    series = [
        Series(
            name,
            [(get_x(point), point.mean) for point in points],
            band=[(point.low, point.high) for point in points],
            labels=[
                f"{name}, round {point.round}: {format_value(point.mean, metric)}"
                f" ({format_value(point.low, metric)} to {format_value(point.high, metric)})"
                for point in points
            ],
            colour=get_colour(found, name),
            dashed=found.names.index(name) >= COLOURS,
        )
        for name, points in averaged.items()
    ]
    limits = (0.0, 1.0) if is_share and metric.better == "higher" else None
    return Chart(title, series, axis, "" if is_share else metric.title, limits, percent=is_share)
