"""Pictures of a suite in Skills, by matplotlib: curves with bands over seeds, categories before and after, tau and bytes.

The same results give the same bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.curves import Point
from benchmarks.skills_results import RowResults, TableResults
from benchmarks.tables import half_width, mean
from fedagentgym.base.imports import require
from fedagentgym.partitions.plots import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = 10
"""The number of colours in matplotlib's cycle."""
TAU = re.compile(r"^(?P<method>.*), tau = (?P<tau>\d+)$")


def draw_results(results: TableResults, folder: Path, name: str) -> dict[str, str]:
    """Draw all pictures that these results allow (title -> name of the file). Only tables that compare taus have a picture of
    tau."""
    drawn = {
        "Success over the run": (draw_curves, f"{name}-curves.png"),
        "Success in each category, before and after": (draw_skills, f"{name}-skills.png"),
        "Success against what was sent": (draw_bytes, f"{name}-bytes.png"),
    }
    if len(_find_taus(results)) > 0:
        drawn["Success against tau"] = (draw_taus, f"{name}-tau.png")
    files = {}
    for title, (draw, file) in drawn.items():
        save_figure(draw(results), folder / file)
        files[title] = file
    return files


def draw_curves(results: TableResults) -> Figure:
    """Mean success over seeds against episodes; the 95 % interval as a band, unless many rows would make bands hard to see."""
    figure, axes = _make_figure()
    with_bands = len(results.rows) <= COLOURS
    for number, one in enumerate(results.rows):
        episodes, success, width = compute_band(one)
        if len(episodes) == 1:
            axes.axhline(success[0], color=_color(number), linestyle=":", label=one.row.name)
            continue
        style = "-" if number < COLOURS else "--"
        axes.plot(episodes, success, style, color=_color(number), marker="o", markersize=3, label=one.row.name)
        if with_bands:
            low, high = np.clip(success - width, 0, 1), np.clip(success + width, 0, 1)
            axes.fill_between(episodes, low, high, color=_color(number), alpha=0.15, linewidth=0)
    return _finish(figure, axes, "environment steps, with preparation", "success on held-out tasks")


def compute_band(one: RowResults) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Episodes, mean success and half of its interval (0 for a single seed) at the points that all seeds have."""
    points: list[tuple[Point, ...]] = list(zip(*one.curves, strict=False))
    widths = [half_width([point.success for point in at]) for at in points]
    return (
        np.array([mean([point.episodes for point in at]) for at in points]),
        np.array([mean([point.success for point in at]) for at in points]),
        np.array([0.0 if math.isinf(width) else width for width in widths]),
    )


def draw_skills(results: TableResults) -> Figure:
    """A matrix of the table's rows by categories, those with a misconception first; its first line is the start of all rows."""
    import matplotlib.pyplot  # noqa: F401  (colour maps are registered by it)

    plots = require("matplotlib.figure", "plots")
    start = results.rows[0].skills
    categories = sorted(start, key=lambda category: (not start[category].misled, start[category].procedure, category))
    lines = [
        [one.skills[category].after if category in one.skills else math.nan for category in categories]
        for one in results.rows
    ]
    matrix = np.array([[start[category].before for category in categories], *lines])
    figure: Figure = plots.Figure(
        figsize=(10, 1.6 + 0.3 * len(matrix)), dpi=120, facecolor="white", layout="constrained"
    )
    axes = figure.subplots()
    image = axes.imshow(matrix, vmin=0, vmax=1, cmap="RdYlBu", aspect="auto")
    axes.set_yticks(range(len(matrix)), ["start", *(one.row.name for one in results.rows)], fontsize=8)
    labels = [f"{category} {start[category].procedure}".strip() for category in categories]
    axes.set_xticks(range(len(categories)), labels, rotation=90, fontsize=7)
    misled = sum(start[category].misled for category in categories)
    axes.axvline(misled - 0.5, color="black", linewidth=1.5)
    axes.set_title(
        f"success in each category; left of the line the {misled} with a wrong belief", fontsize=9, loc="left"
    )
    figure.colorbar(image, ax=axes, fraction=0.02)
    return figure


def draw_bytes(results: TableResults) -> Figure:
    """Success at the end against the megabytes that were sent."""
    figure, axes = _make_figure()
    for number, one in enumerate(results.rows):
        success, width = _end(one)
        axes.errorbar(
            max(one.row.megabytes, 0.01),
            success,
            width,
            color=_color(number),
            marker="o",
            capsize=3,
            label=one.row.name,
        )
    axes.set_xscale("log")
    return _finish(figure, axes, "megabytes sent (0.01: none)", "success on held-out tasks")


def draw_taus(results: TableResults) -> Figure:
    """Success at the end against the local steps between two averages, method by method."""
    figure, axes = _make_figure()
    for number, (method, taus) in enumerate(_find_taus(results).items()):
        ends = [_end(one) for one in taus.values()]
        axes.errorbar(
            list(taus), [end for end, _ in ends], [width for _, width in ends], color=_color(number), marker="o",
            capsize=3, label=method,
        )  # fmt: skip
    axes.set_xscale("log")
    ticks = sorted({tau for taus in _find_taus(results).values() for tau in taus})
    axes.set_xticks(ticks, [str(tau) for tau in ticks])
    axes.minorticks_off()
    return _finish(figure, axes, "local steps between two averages (tau)", "success on held-out tasks")


def _find_taus(results: TableResults) -> Mapping[str, Mapping[int, RowResults]]:
    """Method -> tau -> row, of methods with more than one tau."""
    found: dict[str, dict[int, RowResults]] = {}
    for one in results.rows:
        if match := TAU.match(one.row.name):
            found.setdefault(match["method"], {})[int(match["tau"])] = one
    return {method: dict(sorted(taus.items())) for method, taus in found.items() if len(taus) > 1}


def _end(one: RowResults) -> tuple[float, float]:
    """Success at the end of the curve, and half of its interval (0 for a single seed)."""
    ends = [curve[-1].success for curve in one.curves]
    width = half_width(ends)
    return mean(ends), 0.0 if math.isinf(width) else width


def _make_figure() -> tuple[Figure, Axes]:
    plots = require("matplotlib.figure", "plots")
    figure: Figure = plots.Figure(figsize=(8, 4.2), dpi=120, facecolor="white", layout="constrained")
    return figure, figure.subplots()


def _finish(figure: Figure, axes: Axes, across: str, up: str) -> Figure:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _color(number: int) -> str:
    return f"C{number % COLOURS}"
