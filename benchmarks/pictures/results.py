"""README's two pictures of results: tiny agents of eight clients, and a language model of four."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.pictures.canvas import NARROW, Drawing, spread_apart
from benchmarks.skills_figures import compute_band
from benchmarks.skills_results import RowResults, TableResults
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.experiment.config import load_config

PRESET = "tiny-skills:skills-32,fedavg-grpo,tau-5x16"
TOGETHER = "FedAgent, tau = 5"
ROWS = {
    "all tasks in one place": ("in one place", "green"),
    TOGETHER: ("federated", "blue"),
    "a client alone": ("one client alone", "red"),
    "zero-shot": ("before training", "muted"),
}
SMALL = "small-skills-signs-v1"
SMALL_ROWS = {
    "all tasks in one place": ("in one place", "green"),
    "FedAgent, tau = 2": ("federated", "blue"),
    "a client alone": ("one client alone", "red"),
    "zero-shot": ("before training", "muted"),
}


@dataclass(frozen=True)
class Curve:
    """Success at the points of a curve, as (x, success, lower end, upper end of the band). A single point is drawn as a level."""

    label: str
    color: str
    points: Sequence[tuple[float, float, float, float]]


@dataclass(frozen=True)
class Frame:
    """The rectangle in which curves are drawn; the labels of their ends are to its right."""

    left: float
    top: float
    width: float
    height: float


def draw_overview(results: TableResults) -> Drawing:
    """Draw the tasks of each client, and success alone, together, and with all tasks in one place."""
    drawing = Drawing(
        "Above: the tasks of eight clients. Below: success over training, alone, federated, in one place", 572, NARROW
    )
    _draw_clients(drawing, Frame(64, 52, 264, 192))
    drawing.add_text(24, 316, "Success on held-out tasks of all 32 categories", bold=True)
    draw_curves(drawing, results, ROWS, Frame(64, 336, 184, 192), low=0.4)
    return drawing


def draw_small_model(results: TableResults) -> Drawing:
    """Draw the success of a language model over training: one client alone, four clients together, all tasks in one place."""
    drawing = Drawing("SmolLM2-135M: success over training, alone, federated, in one place", 298, NARROW)
    drawing.add_text(24, 32, "SmolLM2-135M: success on held-out tasks", bold=True)
    drawing.add_text(24, 54, "of all eight categories", bold=True)
    draw_curves(drawing, results, SMALL_ROWS, Frame(64, 78, 184, 176), low=0.4)
    return drawing


def draw_curves(
    drawing: Drawing, results: TableResults, rows: Mapping[str, tuple[str, str]], frame: Frame, low: float
) -> None:
    """Draw the curves of these rows (title -> label and color), their bands and last values; the axis goes from `low` to 1."""
    curves = [Curve(label, color, _list_points(results.get(name))) for name, (label, color) in rows.items()]
    last = max(curve.points[-1][0] for curve in curves)
    seeds = len(results.get(next(iter(rows))).seeds)
    draw_lines(drawing, curves, frame, low, f"episodes, 0 to {last:,.0f} ({seeds} seeds, 95 %)")


def draw_lines(
    drawing: Drawing, curves: Sequence[Curve], frame: Frame, low: float, below: str, *, first: float = 0.0
) -> None:
    """Curves from `first` to the last x of all, and from success `low` to 1, with their bands and the values of their ends."""
    last = max(curve.points[-1][0] for curve in curves)

    def place(x: float, y: float) -> tuple[float, float]:
        share = (1 - min(max(y, low), 1)) / (1 - low)
        return frame.left + frame.width * (x - first) / (last - first), frame.top + frame.height * share

    for tick in np.arange(low, 1.1, 0.2).tolist():
        _, y = place(0, tick)
        drawing.add_line([(frame.left, y), (frame.left + frame.width, y)], "edge", 1)
        drawing.add_text(frame.left - 8, y + 5, f"{tick:.1f}", "muted", anchor="end")
    for curve in curves:
        middle = [place(x, y) for x, y, _, _ in curve.points]
        if len(middle) == 1:
            drawing.add_line([middle[0], place(last, curve.points[0][1])], curve.color, dashed=True)
            continue
        upper, lower = ([place(point[0], point[end]) for point in curve.points] for end in (3, 2))
        drawing.add_area([*upper, *reversed(lower)], curve.color, 0.18)
        drawing.add_line(middle, curve.color)
        for x, y in middle:
            drawing.add_circle(x, y, 3, curve.color)
    ends = [curve.points[-1][1] for curve in curves]
    heights = spread_apart([place(last, end)[1] for end in ends], 19)
    for curve, end, y in zip(curves, ends, heights, strict=True):
        drawing.add_text(frame.left + frame.width + 8, y + 5, f"{end:.2f} {curve.label}", curve.color)
    drawing.add_text(frame.left + frame.width / 2, frame.top + frame.height + 28, below, "muted", anchor="middle")


def _list_points(row: RowResults) -> list[tuple[float, float, float, float]]:
    episodes, success, half = compute_band(row)
    lower, upper = success - half, success + half
    return list(zip(episodes.tolist(), success.tolist(), lower.tolist(), upper.tolist(), strict=True))


def _draw_clients(drawing: Drawing, frame: Frame) -> None:
    """Draw a grid of clients by categories; a cell is blue if the client holds tasks of the category."""
    counts = Runtime(load_config(PRESET).spec()).client_split.statistics().counts
    order = np.argsort(counts.argmax(axis=0), kind="stable")
    wide, high = frame.width / counts.shape[1], frame.height / counts.shape[0]
    drawing.add_text(frame.left, 32, "Who holds which tasks", bold=True)
    for client, row in enumerate(counts[:, order].tolist()):
        drawing.add_text(frame.left - 10, frame.top + high * (client + 0.72), str(client), "muted", anchor="end")
        for column, count in enumerate(row):
            fill = "blue" if count else "panel"
            drawing.add_box(frame.left + wide * column, frame.top + high * client, wide - 1, high - 1, fill)
    below = f"{counts.shape[1]} categories, each with its own rule"
    drawing.add_text(frame.left + frame.width / 2, frame.top + frame.height + 28, below, "muted", anchor="middle")
    drawing.add_text(22, frame.top + frame.height / 2, "client", "muted", anchor="middle", turned=True)
