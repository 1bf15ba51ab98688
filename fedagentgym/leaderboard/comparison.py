"""The page of `fedagentgym compare`: the best entry in a sentence, the table, learning curves, categories, and the sources."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedagentgym.base.escape import add_plugins, quote_word
from fedagentgym.base.files import get_name
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.statistics import LEVEL, MIN_REPLICATES, Difference, Estimate
from fedagentgym.experiment.report.results import describe_run, read_finished
from fedagentgym.leaderboard.compare import (
    RUN_HEADS,
    STEPS,
    Comparison,
    MeanPoint,
    Part,
    align_differences,
    average_curves,
    format_p,
    is_result,
)
from fedagentgym.leaderboard.metrics import Interval, Metric, find_metric, format_spread, format_value
from fedagentgym.leaderboard.rank import read_difference
from fedagentgym.leaderboard.results import Result
from fedagentgym.pages.charts import Chart, Dumbbell, Scale, Series, compute_ticks, pad_range
from fedagentgym.pages.render import Strong, format_percent, render
from fedagentgym.runs.folder import RANKED, find_runs
from fedagentgym.version import __version__

COLOURS = 6
"""Number of different colours; further entries repeat the colours with dashed lines."""
Cell = str | tuple[str, str]
View = dict[str, Any]
"""The values of a part of the page, as its template reads them."""


def write_comparison(found: Comparison, page: Path = Path("comparison.html")) -> str:
    """The HTML of the page; `page` is the file to which it will be written, for the command that it shows."""
    metric = find_metric(found.measure)
    if metric.unit in ("share", "score"):
        found = align_differences(found)
    names = f"{found.names[0]} and {found.names[1]}" if len(found.names) == 2 else f"{len(found.names)} entries"
    parts = {"Scenarios": found.scenarios, "Categories": found.categories}
    paths = {name: one.path for name, one in found.played.items() if one.path is not None}
    sources = {name: (path, *_describe_source(path)) for name, path in paths.items()}
    again = ["fedagentgym", "compare", *paths.values(), "--measure", found.measure, "--out", page]
    lines = [(f"{name}: {what}", command) for name, (_, _, what, command) in sources.items()]
    return render(
        "comparison.html",
        title=f"{metric.title.capitalize()} of {names}",
        result=describe_best(found),
        pairing=f"{found.pairing[0].upper()}{found.pairing[1:]}.",
        whole=_view_whole(found, metric),
        run_heads=[("entry", False), *((head, True) for head in RUN_HEADS)],
        runs=[(name, *one.list_cells()) for name, one in found.spreads.items()],
        curves=_view_curves(found, metric),
        parts=[_view_parts(title, found, metric, each) for title, each in parts.items() if each],
        setting_heads=[("setting", False), *((name, False) for name in found.names)],
        settings=[(key, *values) for key, values in found.settings.items()],
        sources=[(name, about, str(path)) for name, (path, about, _, _) in sources.items()],
        lines=[("this comparison again", shlex.join(map(str, again))), *lines],
        version=__version__,
    )


def format_amount(value: float, metric: Metric, digits: int = 1, sign: str = "") -> str:
    """A difference as text: of a share in points with `digits` decimals, of another measure with three significant digits.

    >>> format_amount(0.1512, find_metric("success"), 0, "+"), format_amount(-0.004, find_metric("success"))
    ('+15', '−0.4')
    """
    text = format_fixed(100 * value, digits) if metric.unit == "share" else f"{value + 0.0:.3g}"
    return text.replace("-", "−") if float(text) <= 0 else f"{sign}{text}"


# ---- the first sentences --------------------------------------------------------------------------------------------


def describe_best(found: Comparison) -> list[str]:
    """The parts of the first sentence: it compares the best entry with the first one, or the next best if the first is best."""
    metric, first = find_metric(found.measure), found.names[0]
    reached = {name: found.measured[name][found.measure].mean for name in found.names}
    sign = 1 if metric.better == "lower" else -1
    best, second, *others = sorted(found.names, key=lambda name: sign * reached[name])  # ties: the one named first
    shown = best if best != first else second
    difference = found.differences[shown]
    start = [Strong(shown), " is "]
    if others and shown == best:
        start = [Strong(shown), f" is best of {len(found.names)}: "]
    elif others and difference.mean:
        start = [Strong(best), f" is best of {len(found.names)}: the next, ", Strong(shown), ", is "]
    # whole points, unless a number would be rounded to nearly nothing
    digits = int(min(abs(value) for value in (difference.mean, *(difference.ends or ()))) < 0.01)
    distance = "level with"
    if abs(difference.mean) >= 1e-12:
        unit = " points" if metric.unit == "share" else ""
        side = "above" if difference.mean > 0 else "below"
        distance = f"{format_amount(abs(difference.mean), metric, digits)}{unit} {side}"
    ends = ""
    if difference.ends is not None:
        low, high = (format_amount(value, metric, digits) for value in difference.ends)
        ends = f" [{low},\u00a0{high}]"
    if difference.adjusted is None:
        doubt = "One run of each does not show" if found.runs == 1 else f"{found.runs} runs of each are too few to show"
        significance = f"{doubt} whether other runs would differ; {MIN_REPLICATES} are needed."
    else:
        p = "p < 0.001" if difference.adjusted < 0.001 else f"p = {difference.adjusted:.2g}"
        corrected = f", corrected for {len(found.differences)} comparisons" if len(found.differences) > 1 else ""
        significance = f"The difference is {'' if difference.is_decided else 'not '}significant ({p}{corrected})."
    values = " against ".join(  # not broken between number and unit
        format_value(reached[name], metric).replace(" ", "\u00a0") for name in (shown, first)
    )
    less = " (less is better)" if metric.better == "lower" else ""
    return [*start, f"{distance} ", Strong(first), f"{ends}: {metric.title} {values}{less}. {significance}"]


# ---- the whole ----------------------------------------------------------------------------------------------------------


def _view_whole(found: Comparison, metric: Metric) -> View:
    """Every entry with its interval, and its difference to the first entry with the interval of the difference."""
    values = {name: found.measured[name][found.measure] for name in found.names}
    runs = {name: found.values[name] if found.runs > 1 else () for name in found.names}
    differences = list(found.differences.values())
    value_axis = _make_axis(list(values.values()), [one for each in runs.values() for one in each])
    difference_axis = _make_axis(differences, [0.0, *(one for each in differences for one in each.values)])
    unit = ", points" if metric.unit == "share" else ""
    count = len(differences)
    heads = [("entry", False), (metric.title, True), ("95 % interval", False)]
    heads += [(f"difference to {found.names[0]}{unit}", True), ("its 95 % interval", False)]
    heads += [("p" if count == 1 else "p, corrected", True), ("finding", False)]
    heads += [(STEPS.title, True)] if found.steps else []
    rows = []
    for name, value in values.items():
        shown, path = None, found.played[name].path
        if (more := found.differences.get(name)) is not None:
            cell = _format_difference(more, metric)
            track = _draw(more, difference_axis, cell[1], more.values, difference_axis.share_across(0.0))
            shown = cell, track, format_p(more.adjusted), read_difference(more)
        row = {
            "name": name,
            "colour": _get_colour(found, name),
            "seeds": "" if path is not None and path.is_file() else describe_seeds(found.seeds[name]),
            "value": _format_interval(value, metric, runs[name]),
            "track": _draw(value, value_axis, format_spread(value, runs[name], metric), runs[name]),
            "difference": shown,
            "steps": format_value(found.steps[name], STEPS) if name in found.steps else "",
        }
        rows.append(row)
    ticks = {
        "value_ticks": _list_ticks(value_axis, metric, ""),
        "difference_ticks": _list_ticks(difference_axis, metric, "+"),
    }
    return {"heads": heads, "rows": rows, "comparisons": count, "has_steps": bool(found.steps), **ticks}


def _format_difference(found: Difference, metric: Metric) -> tuple[str, str]:
    """The mean, and the ends of its interval or the difference of every run."""
    ends = " to " if found.ends is not None else ", "
    values = [format_amount(value, metric, sign="+") for value in found.ends or found.values]
    return format_amount(found.mean, metric, sign="+"), ends.join(values)


def _get_colour(found: Comparison, name: str) -> int:
    """The number of an entry's colour, which is the same in all figures of the page."""
    return found.names.index(name) % COLOURS + 1


def describe_seeds(seeds: Sequence[int]) -> str:
    """
    >>> describe_seeds([0, 1, 2, 3, 7]), describe_seeds([5])
    ('seeds 0 to 3, 7', 'seed 5')
    """
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    ranges = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(ranges)}"


def _format_interval(value: Interval, metric: Metric, runs: Sequence[float] = ()) -> Cell:
    mean = format_value(value.mean, metric)
    if value.ends is None:
        return (mean, ", ".join(format_value(one, metric) for one in runs)) if runs else mean
    low, high = (format_value(end, metric) for end in value.ends)
    return mean if low == high else (mean, f"{low} to {high}")


def _make_axis(shown: Sequence[Interval | Difference], points: Sequence[float]) -> Scale:
    """An axis with a margin that contains all points, means and intervals."""
    values = [*points, *(value for one in shown for value in (one.mean, *(one.ends or ())))]
    return Scale(*pad_range(min(values), max(values)))


def _draw(
    found: Interval | Difference, axis: Scale, title: str, runs: Sequence[float], zero: float | None = None
) -> View:
    """A mean with its interval or, if there is none, with the runs: positions in percent of the axis."""
    low, high = map(axis.share_across, found.ends or (found.mean, found.mean))
    shown = () if found.ends else [axis.share_across(one) for one in runs]
    middle = axis.share_across(found.mean)
    return {"title": title, "low": low, "mean": middle, "high": high, "zero": zero, "runs": shown}


def _list_ticks(axis: Scale, metric: Metric, sign: str) -> list[tuple[float, str]]:
    scale, unit = (100, "" if sign else " %") if metric.unit == "share" else (1, "")
    return [
        (axis.share_across(tick), f"{scale * tick + 0.0:{sign if tick else ''}.4g}".replace("-", "−") + unit)
        for tick in compute_ticks(axis.left, axis.right)
    ]


# ---- parts: scenarios and categories ------------------------------------------------------------------------------------


def _view_parts(title: str, found: Comparison, metric: Metric, parts: Mapping[str, Part]) -> View:
    """Parts with the entries' values and differences. If two entries with intervals are compared, parts in which they differ are
    drawn as dumbbells and `same` names the other parts. Significant differences in the table are marked as good or bad."""
    first, *others = found.names
    largest = {name: max(one.mean for one in part.differences.values()) for name, part in parts.items()}
    ordered = [(name or "no category", parts[name]) for name in sorted(parts, key=lambda name: -largest[name])]
    unit = ", points" if metric.unit == "share" else ""
    heads = [(title.lower(), False), ("tasks", True), *((name, True) for name in found.names)]
    heads += [(f"{name} − {first}{unit}", True) for name in others]
    rows = []
    for name, part in ordered:
        marked = []
        for one in (part.differences[entry] for entry in others):
            kind = "good" if (one.mean > 0) == (metric.better != "lower") else "bad"
            marked.append((*_format_difference(one, metric), kind if one.is_decided else ""))
        values = [_format_interval(part.measured[entry], metric) for entry in found.names]
        rows.append((name, f"{part.tasks:,}", values, marked))
    count = len(parts) * len(others)
    note = f"* significant: p below {LEVEL:g} after Holm's correction for all {count} differences here."
    view = {"title": title, "less": metric.better == "lower", "heads": heads, "rows": rows, "note": note}
    if len(others) > 1 or metric.unit != "share" or not all(one.ends for one in found.differences.values()):
        return {**view, "dumbbells": None, "same": ""}
    dumbbells, same = [], []
    for name, part in ordered:
        before, after, change = (
            Estimate(one.mean, *(one.ends or (one.mean, one.mean)))
            for one in (part.measured[first], part.measured[others[0]], part.differences[others[0]])
        )
        if change.mean:
            dumbbells.append(Dumbbell(name, before, after, change))
        else:
            same.append(f"{name} {format_percent(after.mean)}")
    return {**view, "dumbbells": dumbbells, "same": ", ".join(same)}


# ---- learning curves ----------------------------------------------------------------------------------------------------


Averaged = Mapping[str, Sequence[MeanPoint]]
"""The mean curves by entry, of the entries that have one."""


def _view_curves(found: Comparison, metric: Metric) -> View:
    """The charts of every scenario: one by round in full width, and charts by episodes and bytes if they show more."""
    by_scenario: dict[str, Averaged] = {}
    for scenario in dict.fromkeys(scenario for own in found.curves.values() for scenario in own):
        averaged = {name: average_curves(own.get(scenario, ()), found.measure) for name, own in found.curves.items()}
        by_scenario[scenario] = {name: points for name, points in averaged.items() if points}
    drawn = {name for averaged in by_scenario.values() for name in averaged}
    if not drawn:
        return {"charts": [], "note": f"None of these has a recorded curve of {metric.title}."}
    missing = ", ".join(name for name in found.names if name not in drawn)
    note = (
        f"{metric.title.capitalize()} in the evaluations of each run; for packed results, on the split by which their round"
        " was chosen. Lines are means over seeds. Bands reach from the lowest to the highest seed; for a single seed they show"
        f" its interval. {f'No learning curve of {metric.title} is recorded for {missing}.' if missing else ''}"
    )
    charts = [_make_charts(found, metric, scenario, each) for scenario, each in by_scenario.items() if each]
    return {"charts": charts, "note": note}


def _make_charts(found: Comparison, metric: Metric, scenario: str, averaged: Averaged) -> tuple[Chart, list[Chart]]:
    is_share = metric.unit == "share"
    limits = (0.0, 1.0) if is_share and metric.better == "higher" else None

    def chart(title: str, axis: str, curves: Averaged, get_x: Callable[[MeanPoint], float]) -> Chart:
        series = []
        for name, points in curves.items():
            labels = []
            for point in points:
                mean, low, high = (format_value(value, metric) for value in (point.mean, point.low, point.high))
                labels.append(f"{name}, round {point.round}: {mean} ({low} to {high})")
            places, band = (
                [(get_x(point), point.mean) for point in points],
                [(point.low, point.high) for point in points],
            )
            dashed = found.names.index(name) >= COLOURS
            series.append(
                Series(name, places, band=band, labels=labels, colour=_get_colour(found, name), dashed=dashed)
            )
        whole = f"{title} in {scenario}" if scenario else title
        return Chart(whole, series, axis, "" if is_share else metric.title, limits, percent=is_share)

    charts = []
    shares = {point.episodes / point.round for points in averaged.values() for point in points if point.round}
    if len(shares) > 1:  # rounds with different numbers of episodes: this chart differs from the one by round
        charts.append(chart("By training episodes", "thousand episodes", averaged, lambda point: point.episodes / 1000))
    if sent := {name: points for name, points in averaged.items() if points[-1].bytes > 0}:
        silent = ", ".join(name for name in averaged if name not in sent)
        axis = "MB sent and received" + (f" ({silent}: none)" if silent else "")
        charts.append(chart("By bytes", axis, sent, lambda point: point.bytes / 1e6))
    return chart("By round", "round", averaged, lambda point: point.round), charts


# ---- what was compared --------------------------------------------------------------------------------------------------


def _describe_source(path: Path) -> tuple[str, str, str]:
    """A description of a compared path, of the next step with it, and the command for that step."""
    place = quote_word(path)
    if is_result(path):
        suite, plugins = Result(path).suite, Result(path).entry.plugin_paths
        about = f"result of {suite.name}, version {suite.version}; track {suite.track}"
        return about, "check every number", add_plugins(f"fedagentgym bench verify {place}", plugins)
    runs = find_runs(path) if path.is_dir() else []
    if not runs:
        return "file of episodes", "read its episodes", f"fedagentgym episodes {place}"
    first = runs[0]
    episodes, result = first.find_episodes(), read_finished(first.path)
    if "partition" not in first.config:
        check = add_plugins(f"fedagentgym eval --check {place}", first.plugins)
        return "evaluation of an agent", "play every episode again", check
    about = f"{describe_run(result, [])}; " if result else "an unfinished run; "
    if episodes == first.path / RANKED:
        about += "its ranked episodes"
    elif episodes is not None:
        about += f"its evaluation of round {int(episodes.stem)}"
    what = "the same run again"
    if [run.path for run in runs] != [path]:
        about = f"{len(runs)} runs; the first, {get_name(first.path)}: {about}"
        what = f"the first of its {len(runs)} runs again"
    config = quote_word(f"{first.path}/config.yaml")
    return about, what, f"fedagentgym train {config} --out again"
