"""The picture at the head of README: who holds which tasks, and success alone, together, and with all tasks in one place.

    python -m fedagentgym.benchmarks.overview        writes docs/overview.svg from benchmarks/results/skills-fedagent.json

The curves are those of the results that are kept with the source; the left half divides the tasks as those runs did.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedagentgym.algorithms.support.runtime import Runtime
from fedagentgym.base.extras import require
from fedagentgym.benchmarks.skills_figures import compute_band
from fedagentgym.benchmarks.skills_results import TableResults, load_results
from fedagentgym.benchmarks.skills_tables import KEPT
from fedagentgym.experiment.config import load_config
from fedagentgym.partitions.analysis.style import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRESET = "tiny-skills:skills-32,fedavg-grpo,tau-5x16"
RESULTS = KEPT / "skills-fedagent.json"
ROWS = {
    "centralized": ("all tasks in one place", "#1b7837"),
    "FedAgent, tau = 5": ("federated", "#2166ac"),
    "a client alone": ("one client alone", "#b2182b"),
    "zero-shot": ("before training", "#777777"),
}


def draw_overview(results: TableResults, path: Path) -> None:
    """Write the picture; the same results give the same bytes."""
    plots = require("matplotlib.figure", "plots")
    figure = plots.Figure(figsize=(9, 3.1), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _draw_clients(left)
    _draw_curves(right, results)
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


if __name__ == "__main__":
    draw_overview(load_results(RESULTS), Path(sys.argv[1] if len(sys.argv) > 1 else "docs/overview.svg"))
