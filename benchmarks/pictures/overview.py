"""README's first picture: the clients' tasks, and success over training alone, together, and with all tasks in one place."""

from __future__ import annotations

import numpy as np

from benchmarks.pictures.canvas import Drawing, spread_apart
from benchmarks.skills_figures import compute_band
from benchmarks.skills_results import TableResults
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.base.errors import DataError
from fedagentgym.experiment.config import load_config

PRESET = "tiny-skills:skills-32,fedavg-grpo,tau-5x16"
TOGETHER = "FedAgent, tau = 5"
ROWS = {
    "centralized": ("all tasks in one place", "green"),
    TOGETHER: ("federated", "blue"),
    "a client alone": ("one client alone", "red"),
    "zero-shot": ("before training", "muted"),
}
LOW, HIGH = 0.4, 1.0


def draw_kept_overview() -> Drawing:
    """The picture of the results that are kept with the source."""
    from benchmarks.skills_tables import FEDAGENT, load_kept_results

    results = load_kept_results(FEDAGENT)
    if results is None:
        raise DataError("benchmarks/results has no results of skills-fedagent")
    return draw_overview(results)


def draw_overview(results: TableResults) -> Drawing:
    drawing = Drawing("Left: the tasks of eight clients. Right: success over training, alone, federated, in one place", 300)
    _draw_clients(drawing, left=64, top=52, width=264, height=192)
    _draw_curves(drawing, results, left=404, top=52, width=190, height=192)
    return drawing


def _draw_clients(drawing: Drawing, left: float, top: float, width: float, height: float) -> None:
    """Clients by categories; a category belongs to the client that holds its tasks."""
    counts = Runtime(load_config(PRESET).spec()).client_split.statistics().counts
    order = np.argsort(counts.argmax(axis=0), kind="stable")
    wide, high = width / counts.shape[1], height / counts.shape[0]
    drawing.add_text(left, 32, "Who holds which tasks", bold=True)
    for client, row in enumerate(counts[:, order].tolist()):
        drawing.add_text(left - 10, top + high * (client + 0.72), str(client), "muted", anchor="end")
        for column, count in enumerate(row):
            fill = "blue" if count else "panel"
            drawing.add_box(left + wide * column, top + high * client, wide - 1, high - 1, fill)
    across = f"{counts.shape[1]} categories, each with its own rule"
    drawing.add_text(left + width / 2, top + height + 28, across, "muted", anchor="middle")
    turn = f' transform="rotate(-90 22 {top + height / 2:g})"'
    drawing.add_text(22, top + height / 2, "client", "muted", anchor="middle", extra=turn)


def _draw_curves(drawing: Drawing, results: TableResults, left: float, top: float, width: float, height: float) -> None:
    """Mean success over the seeds with its 95 % interval."""
    bands = {name: compute_band(results.get(name)) for name in ROWS}
    last = max(float(episodes[-1]) for episodes, _, _ in bands.values())

    def place(episodes: float, success: float) -> tuple[float, float]:
        return left + width * episodes / last, top + height * (HIGH - min(max(success, LOW), HIGH)) / (HIGH - LOW)

    drawing.add_text(left - 32, 32, "Success on held-out tasks of all 32 categories", bold=True)
    for tick in (0.4, 0.6, 0.8, 1.0):
        _, y = place(0, tick)
        drawing.add_line([(left, y), (left + width, y)], "edge", 1)
        drawing.add_text(left - 8, y + 5, f"{tick:.1f}", "muted", anchor="end")
    for name, (_, color) in ROWS.items():
        episodes, success, half = bands[name]
        if len(episodes) == 1:
            drawing.add_line([place(0, success[0]), place(last, success[0])], color, dashed=True)
            continue
        points = list(zip(episodes.tolist(), success.tolist(), half.tolist(), strict=True))
        upper = [place(x, y + h) for x, y, h in points]
        drawing.add_area([*upper, *(place(x, y - h) for x, y, h in reversed(points))], color, 0.18)
        drawing.add_line([place(x, y) for x, y, _ in points], color)
        for x, y, _ in points:
            drawing.add_circle(*place(x, y), 3, color)
    ends = [float(success[-1]) for _, success, _ in bands.values()]
    heights = spread_apart([place(last, end)[1] for end in ends], 19)
    for (label, color), end, y in zip(ROWS.values(), ends, heights, strict=True):
        drawing.add_text(left + width + 8, y + 5, f"{end:.2f} {label}", color)
    seeds = len(results.get(TOGETHER).seeds)
    across = f"episodes, 0 to {last:,.0f} ({seeds} seeds, 95 %)"
    drawing.add_text(left + width / 2, top + height + 28, across, "muted", anchor="middle")
