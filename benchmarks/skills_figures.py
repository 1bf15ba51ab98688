"""Figures of a table of skills, by matplotlib: curves with bands over seeds, towns before and after, tau and bytes.

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
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.base.imports import require
from fedagentgym.experiment.config import load_config
from fedagentgym.partitions.plots import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = 10
"""Of matplotlib's cycle."""
TAU = re.compile(r"^(?P<method>.*), tau = (?P<tau>\d+)$")


def draw_results(results: TableResults, folder: Path, name: str) -> dict[str, str]:
    """All pictures that these results allow: title -> name of the file. Tables that compare no tau have no picture against it."""
    drawn = {
        "Success over the run": (draw_curves, f"{name}-curves.png"),
        "Success in each town, before and after": (draw_skills, f"{name}-skills.png"),
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
    """Mean success over seeds against episodes; the 95 % interval as a band, unless many rows would make bands hard to tell."""
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
    return _finish(figure, axes, "episodes to learn from", "success on held-out tasks")


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
    """A matrix: rows of the table by towns, those with a misconception first; the first line is what all start from."""
    import matplotlib.pyplot  # noqa: F401  (colour maps are registered by it)

    plots = require("matplotlib.figure", "plots")
    start = results.rows[0].skills
    towns = sorted(start, key=lambda town: (not start[town].misled, start[town].procedure, town))
    lines = [[one.skills[town].after if town in one.skills else math.nan for town in towns] for one in results.rows]
    matrix = np.array([[start[town].before for town in towns], *lines])
    figure: Figure = plots.Figure(
        figsize=(10, 1.6 + 0.3 * len(matrix)), dpi=120, facecolor="white", layout="constrained"
    )
    axes = figure.subplots()
    image = axes.imshow(matrix, vmin=0, vmax=1, cmap="RdYlBu", aspect="auto")
    axes.set_yticks(range(len(matrix)), ["start", *(one.row.name for one in results.rows)], fontsize=8)
    labels = [f"{town} {start[town].procedure}".strip() for town in towns]
    axes.set_xticks(range(len(towns)), labels, rotation=90, fontsize=7)
    misled = sum(start[town].misled for town in towns)
    axes.axvline(misled - 0.5, color="black", linewidth=1.5)
    axes.set_title(f"success in each town; left of the line the {misled} with a misconception", fontsize=9, loc="left")
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
    """Success at the end against the local steps between two meetings, method by method."""
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


# ---- the picture of README -----------------------------------------------------------------------------------------

PRESET = "tiny-skills:skills-32,fedavg-grpo,tau-5x16"
ROWS = {
    "centralized": ("all tasks in one place", "#1b7837"),
    "FedAgent, tau = 5": ("federated", "#2166ac"),
    "a client alone": ("one client alone", "#b2182b"),
    "zero-shot": ("before training", "#777777"),
}


def draw_overview(results: TableResults, path: Path) -> None:
    """Write docs/overview.svg: who holds which tasks, and success alone, together, and with all tasks in one place."""
    plots = require("matplotlib.figure", "plots")
    figure = plots.Figure(figsize=(9, 3.1), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _draw_clients(left)
    _draw_curves(right, results)
    save_figure(figure, path)


def draw_small_model(results: TableResults, path: Path) -> None:
    """Write docs/small-model.svg: success of a real language model over the rounds, four clients together and one alone."""
    plots = require("matplotlib.figure", "plots")
    figure = plots.Figure(figsize=(9, 2.6), facecolor="white", layout="constrained")
    axes = figure.subplots()
    for one, color in zip(results.rows, ("tab:blue", "tab:red"), strict=True):
        (curve,) = one.curves
        success = [point.success for point in curve]
        axes.plot([point.round for point in curve], success, color=color, marker="o", markersize=3)
        axes.annotate(f" {one.row.name}: {success[-1]:.2f}", (curve[-1].round, success[-1]), color=color, va="center")
    last = results.rows[0].curves[0][-1].round
    axes.set_title("SmolLM2-135M: success on 128 unseen tasks of all four towns, one seed", fontsize=10)
    axes.set(xlabel="rounds of two local steps", xlim=(0, 1.25 * last), ylim=(0.3, 1.0), xticks=range(0, last + 1, 3))
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def _draw_clients(axes: Axes) -> None:
    """Clients by towns; a town belongs to the client that holds its tasks."""
    measured = Runtime(load_config(PRESET).spec()).client_split.statistics()
    order = np.argsort(measured.counts.argmax(axis=0), kind="stable")
    axes.imshow(measured.counts[:, order], cmap="Blues", aspect="auto", interpolation="nearest")
    axes.set(xlabel="32 towns, each with a rule of its own", ylabel="client", xticks=[])
    axes.set_title("Who holds which tasks", fontsize=10)
    axes.set_yticks(range(len(measured.sizes)))


def _draw_curves(axes: Axes, results: TableResults) -> None:
    """Mean success over the seeds with its 95 % interval."""
    for name, (label, color) in ROWS.items():
        episodes, success, width = compute_band(results.get(name))
        if len(episodes) == 1:
            axes.plot((0, 20_480), (success[0], success[0]), color=color, linestyle=":")
        else:
            axes.plot(episodes, success, color=color, marker="o", markersize=3)
            axes.fill_between(episodes, success - width, success + width, color=color, alpha=0.15, linewidth=0)
        axes.annotate(f" {label}: {success[-1]:.2f}", (20_480, success[-1]), color=color, va="center", fontsize=9)
    seeds = len(results.get("FedAgent, tau = 5").seeds)
    axes.set_title(f"Success on held-out tasks of all towns ({seeds} seeds, 95 %)", fontsize=10)
    axes.set(xlabel="episodes", xlim=(0, 32_000), ylim=(0.4, 1.0), xticks=(0, 5_120, 10_240, 15_360, 20_480))
    axes.spines[["top", "right"]].set_visible(False)
