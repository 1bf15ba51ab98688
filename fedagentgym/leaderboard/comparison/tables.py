"""The table of a comparison and that of its parts: values and differences, each drawn on an axis of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedagentgym.experiment.report.categories import Dumbbell, render_dumbbells
from fedagentgym.experiment.report.charts import Scale, compute_ticks, pad_range
from fedagentgym.experiment.report.markup import fold, format_percent, render_table, show
from fedagentgym.leaderboard.compare import Comparison, Part
from fedagentgym.leaderboard.intervals import Difference
from fedagentgym.leaderboard.metrics import Metric
from fedagentgym.leaderboard.record import Interval
from fedagentgym.leaderboard.site.differences import LEVEL, judge
from fedagentgym.leaderboard.site.tables import find_metric, format_value
from fedagentgym.learning.evaluation import Estimate

ZERO = Interval(mean=0.0, low=0.0, high=0.0)
COLOURS = 6
"""Number of entries with a colour of their own; further ones have the same colours, and dashed lines."""


def get_colour(found: Comparison, name: str) -> int:
    """The number of an entry's colour, the same in all drawings of the page."""
    return found.names.index(name) % COLOURS + 1


def format_amount(value: float, metric: Metric, digits: int = 1, sign: str = "") -> str:
    """A difference: in points, with so many digits, if the measure is a share.

    >>> format_amount(0.1512, find_metric("success"), 0, "+"), format_amount(-0.004, find_metric("success"))
    ('+15', '−0.4')
    """
    text = f"{round(100 * value, digits) + 0.0:.{digits}f}" if metric.unit == "share" else f"{value + 0.0:.3g}"
    return text.replace("-", "−") if float(text) <= 0 else f"{sign}{text}"


# ---- the whole ----------------------------------------------------------------------------------------------------------


def render_whole(found: Comparison) -> str:
    """Every entry with its interval, and its difference to the first with that of the difference."""
    metric, first = find_metric(found.measure), found.names[0]
    values = [found.measured[name][found.measure] for name in found.names]
    value_axis, difference_axis = _make_axis(values), _make_axis([*found.differences.values(), ZERO])
    unit = ", points" if metric.unit == "share" else ""
    heads = [("entry", False), (metric.title, True), ("95 % interval", False), (f"difference to {first}{unit}", True)]
    heads += [("its 95 % interval", False)]
    heads += [("p" if len(found.differences) == 1 else "p, corrected", True), ("finding", False)]
    rows = []
    for name, value in zip(found.names, values, strict=True):
        colour = get_colour(found, name)
        ends = f"{format_value(value.low, metric)} to {format_value(value.high, metric)}"
        cells = [
            f'<span class="entry c{colour}"><i></i>{show(name)}</span>{_tell_seeds(found, name)}',
            _write_value(value, metric),
            _draw(value, value_axis, colour, ends),
        ]
        more = found.differences.get(name)
        rows.append([*cells, *(_write_difference(more, metric, difference_axis, colour) if more else ["", "", "", ""])])
    count = len(found.differences)
    corrected = (
        f" p values are corrected for the {count} comparisons by Holm's method, intervals are not." if count > 1 else ""
    )
    rows.append(["", "", _draw_ticks(value_axis, metric, ""), "", _draw_ticks(difference_axis, metric, "+"), "", ""])
    return (
        f'<div class="card compared">{render_table(heads, rows, "Comparison")}<p class="note">95 % intervals by bootstrap over'
        " tasks and seeds; those of differences are paired, which is why they can be narrower than the two intervals suggest."
        f"{corrected}</p></div>"
    )


def _tell_seeds(found: Comparison, name: str) -> str:
    """The seeds of an entry; a single file does not say its seed."""
    path = found.paths.get(name)
    if path is not None and path.is_file():
        return ""
    return f'<small class="seeds">{tell_seeds(found.seeds[name])}</small>'


def tell_seeds(seeds: Sequence[int]) -> str:
    """
    >>> tell_seeds([0, 1, 2, 3, 7]), tell_seeds([5])
    ('seeds 0 to 3, 7', 'seed 5')
    """
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    told = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(told)}"


def _write_value(value: Interval, metric: Metric) -> str:
    if value.low == value.high:
        return format_value(value.mean, metric)
    return (
        f"{format_value(value.mean, metric)} <small>{format_value(value.low, metric)} to"
        f" {format_value(value.high, metric)}</small>"
    )


def _write_difference(found: Difference, metric: Metric, axis: Scale, colour: int) -> list[str]:
    low, high = (format_amount(end, metric, sign="+") for end in (found.low, found.high))
    return [
        f"{format_amount(found.mean, metric, sign='+')} <small>{low} to {high}</small>",
        _draw(found, axis, colour, f"{low} to {high}", zero=True),
        f"{found.adjusted:.4f}",
        judge(found, 0.0),
    ]


# ---- drawings on a common axis ------------------------------------------------------------------------------------------


def _make_axis(shown: Sequence[Interval | Difference]) -> Scale:
    """Around all of these."""
    return Scale(*pad_range(min(one.low for one in shown), max(one.high for one in shown)), 0.0, 1.0)


def _draw(found: Interval | Difference, axis: Scale, colour: int, told: str, *, zero: bool = False) -> str:
    """An interval with its mean on an axis."""
    low, mean, high = (axis.share_across(value) for value in (found.low, found.mean, found.high))
    line = f'<i class="zero" style="left:{axis.share_across(0.0):.2f}%"></i>' if zero else ""
    return (
        f'<div class="track c{colour}" role="img" aria-label="{show(told)}" title="{show(told)}">{line}'
        f'<i class="interval" style="left:{low:.2f}%;width:{high - low:.2f}%"></i>'
        f'<i class="after" style="left:{mean:.2f}%"></i></div>'
    )


def _draw_ticks(axis: Scale, metric: Metric, sign: str) -> str:
    spans = "".join(
        f'<span style="left:{axis.share_across(tick):.2f}%">{show(_write_tick(tick, metric, sign))}</span>'
        for tick in compute_ticks(axis.left, axis.right)
    )
    return f'<div class="axis">{spans}</div>'


def _write_tick(tick: float, metric: Metric, sign: str) -> str:
    value, unit = (100 * tick, "" if sign else " %") if metric.unit == "share" else (tick, "")
    return f"{value + 0.0:{sign if tick else ''}.4g}".replace("-", "−") + unit


# ---- parts: scenarios and categories ------------------------------------------------------------------------------------


def render_parts(title: str, found: Comparison, parts: Mapping[str, Part]) -> str:
    """Every part with the entries' values and differences: dumbbells for two entries, a table for more."""
    if not parts:
        return ""
    metric = find_metric(found.measure)
    ordered = sorted(parts.items(), key=lambda item: -max(one.mean for one in item[1].differences.values()))
    table = _render_numbers(title, found, ordered, metric)
    if len(found.names) > 2 or metric.unit != "share":
        return f'<h2>{title}</h2><div class="card parts">{table}</div>'
    kind = " less" if metric.better == "lower" else ""
    return (
        f'<h2>{title}</h2><div class="card parts{kind}">{_render_dumbbells(found, ordered)}'
        f"{fold(f'All numbers of the {title.lower()}', table)}</div>"
    )


def _render_dumbbells(found: Comparison, parts: Sequence[tuple[str, Part]]) -> str:
    """The parts in which the two differ on some task as dumbbells, the others in a sentence."""
    first, second = found.names
    rows = [
        Dumbbell(
            _name(name),
            _to_estimate(part.measured[first]),
            _to_estimate(part.measured[second]),
            _to_estimate(part.differences[second]),
        )
        for name, part in parts
    ]
    differ = [row for row in rows if row.change is not None and any(row.change)]
    same = ", ".join(f"{row.name} {format_percent(row.after.mean)}" for row in rows if row not in differ)
    told = f'<p class="note">The same in both, task by task: {show(same)}.</p>' if same else ""
    return (render_dumbbells(differ, first, second) if differ else "") + told


def _to_estimate(found: Interval | Difference) -> Estimate:
    return Estimate(found.mean, found.low, found.high)


def _name(part: str) -> str:
    return part or "no category"


def _render_numbers(title: str, found: Comparison, parts: Sequence[tuple[str, Part]], metric: Metric) -> str:
    first, *others = found.names
    unit = ", points" if metric.unit == "share" else ""
    heads = [(title.lower(), False), ("tasks", True), *((name, True) for name in found.names)]
    heads += [(f"{name} − {first}{unit}", True) for name in others]
    rows = []
    for name, part in parts:
        cells = [f'<span class="entry">{show(_name(name))}</span>', f"{part.tasks:,}"]
        cells += [_write_value(part.measured[entry], metric) for entry in found.names]
        rows.append([*cells, *(_write_part_difference(part.differences[entry], metric) for entry in others)])
    note = (
        f"* significant: p below {LEVEL:g} after Holm's correction for all {len(parts) * len(others)} differences here."
    )
    return f'{render_table(heads, rows, f"{title} with all numbers")}<p class="note">{note}</p>'


def _write_part_difference(found: Difference, metric: Metric) -> str:
    low, high = (format_amount(end, metric, sign="+") for end in (found.low, found.high))
    mean = format_amount(found.mean, metric, sign="+")
    if found.adjusted < LEVEL:
        better = (found.mean > 0) == (metric.better != "lower")
        mean = f'<b class="{"good" if better else "bad"}">{mean}*</b>'
    return f"{mean} <small>{low} to {high}</small>"
