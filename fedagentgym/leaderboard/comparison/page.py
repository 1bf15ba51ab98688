"""The page of a comparison: the best entry in a sentence, the table, learning curves, categories, and what was compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from fedagentgym.experiment.report.markup import show
from fedagentgym.experiment.report.page import render_page
from fedagentgym.leaderboard.compare import Comparison
from fedagentgym.leaderboard.comparison.charts import render_curves
from fedagentgym.leaderboard.comparison.sources import render_sources
from fedagentgym.leaderboard.comparison.tables import format_amount, render_parts, render_whole
from fedagentgym.leaderboard.curves import LearningCurve
from fedagentgym.leaderboard.intervals import Difference
from fedagentgym.leaderboard.metrics import Metric
from fedagentgym.leaderboard.site.differences import LEVEL
from fedagentgym.leaderboard.site.tables import find_metric, format_value

FEW_SEEDS = 5
NO_CURVES: Mapping[str, Sequence[LearningCurve]] = MappingProxyType({})


def write_comparison(
    found: Comparison, curves: Mapping[str, Sequence[LearningCurve]] = NO_CURVES, page: Path = Path("comparison.html")
) -> str:
    """The page; `curves` are those of the entries that have some, `page` is the file for which it is made."""
    title = f"{find_metric(found.measure).title.capitalize()} of {_name_entries(found.names)}"
    parts = [
        f'<h1>{show(title)}</h1><p class="result">{tell_best(found)}</p><p class="about">{_tell_pairing(found)}</p>',
        render_whole(found),
        render_curves(found, curves),
        render_parts("Scenarios", found, found.scenarios),
        render_parts("Categories", found, found.categories),
        render_sources(found, page),
    ]
    style = (files("fedagentgym.leaderboard.comparison") / "comparison.css").read_text("utf-8")
    return render_page(title, "".join(parts), style)


def _name_entries(names: Sequence[str]) -> str:
    return f"{names[0]} and {names[1]}" if len(names) == 2 else f"{len(names)} entries"


def tell_best(found: Comparison) -> str:
    """The first sentence: the best entry against the first one, or, where that is the best, the next best against it."""
    metric = find_metric(found.measure)
    first = found.names[0]
    best, second, *others = _order(found, metric)
    shown = best if best != first else second
    difference = found.differences[shown]
    start = f"<b>{show(shown)}</b> is"
    if others and shown == best:
        start += f" best of {len(found.names)}:"
    elif others and difference.mean:
        start = f"<b>{show(best)}</b> is best of {len(found.names)}: the next, <b>{show(shown)}</b>, is"
    low, high = (format_amount(value, metric, _count_digits(difference)) for value in (difference.low, difference.high))
    reached = " against ".join(  # not broken between number and unit
        format_value(found.measured[name][found.measure].mean, metric).replace(" ", "\u00a0") for name in (shown, first)
    )
    less = " (less is better)" if metric.better == "lower" else ""
    return (
        f"{start} {_tell_distance(difference, metric)} <b>{show(first)}</b> [{low},\u00a0{high}]: {show(metric.title)} {reached}"
        f"{less}. {_tell_significance(difference, len(found.differences))}"
    )


def _order(found: Comparison, metric: Metric) -> list[str]:
    """Best first; of equals the one that was named first."""
    sign = 1 if metric.better == "lower" else -1
    return sorted(found.names, key=lambda name: sign * found.measured[name][found.measure].mean)


def _tell_distance(difference: Difference, metric: Metric) -> str:
    if abs(difference.mean) < 1e-12:
        return "level with"
    amount = format_amount(abs(difference.mean), metric, _count_digits(difference))
    unit = " points" if metric.unit == "share" else ""
    return f"{amount}{unit} {'above' if difference.mean > 0 else 'below'}"


def _count_digits(difference: Difference) -> int:
    """Whole points, unless a number would be rounded to nearly nothing."""
    return int(min(abs(difference.mean), abs(difference.low), abs(difference.high)) < 0.01)


def _tell_significance(difference: Difference, count: int) -> str:
    corrected = f", corrected for {count} comparisons" if count > 1 else ""
    p = "p < 0.001" if difference.adjusted < 0.001 else f"p = {difference.adjusted:.2g}"
    kind = "significant" if difference.adjusted < LEVEL else "not significant"
    return f"The difference is {kind} ({p}{corrected})."


def _tell_pairing(found: Comparison) -> str:
    few = min(map(len, found.seeds.values())) if len(set(found.seeds.values())) == 1 else FEW_SEEDS
    doubt = ""
    if few == 1:
        doubt = " With a single seed, intervals do not cover other seeds."
    elif few < FEW_SEEDS:
        doubt = f" Few seeds ({few}) say little of other seeds."
    return show(f"{found.pairing[0].upper()}{found.pairing[1:]}.{doubt}")
