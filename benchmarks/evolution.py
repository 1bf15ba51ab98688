"""Success against bytes: evolution strategies, which send scores, beside FedAvg-GRPO, which sends parameters.

Both play the preset `tiny-skills`, with the same initial agent, clients and seeds. `quick` plays two rounds of each with one
seed; it shows that the benchmark runs, not what the agents learn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import fedagentgym
from benchmarks.curves import Point, read_curve
from benchmarks.kept_curves import save_curves
from benchmarks.measurement import Measurement

SEEDS = (0, 1, 2)
ROWS: Mapping[str, Sequence[str]] = {
    "tiny-skills:fedavg-grpo": ("evaluation.every=2",),
    "tiny-skills:es": (),
}
"""The compared runs: a preset with its variant, and the changes to it."""
CURVES = "evolution-strategies"
"""The name of the kept curves, success by megabytes sent."""
QUICK = ("federation.rounds=2", "evaluation.every=1", "evaluation.tasks=20", "warm_start.steps=50")


def run(quick: bool) -> list[Measurement]:
    """Episodes, megabytes and success after each evaluated round, as means over the seeds, and the success of each at the end."""
    figures: list[Measurement] = []
    kept = {}
    for row, changes in ROWS.items():
        method = row.partition(":")[2]
        curves = [_play(row, (*changes, *(QUICK if quick else ())), seed) for seed in (SEEDS[:1] if quick else SEEDS)]
        kept[method] = [[(point.megabytes, point.success) for point in curve] for curve in curves]
        for points in zip(*curves, strict=True):
            label = f"{method} round {points[0].round}"
            figures.append(Measurement(f"{label} episodes", mean(point.episodes for point in points), ""))
            figures.append(Measurement(f"{label} megabytes", mean(point.megabytes for point in points), "MB"))
            figures.append(Measurement(f"{label} success", mean(point.success for point in points), ""))
        for seed, curve in zip(SEEDS, curves, strict=False):
            figures.append(Measurement(f"{method} seed {seed} success at the end", curve[-1].success, ""))
    if not quick:
        save_curves(CURVES, kept)
    return figures


def _play(row: str, changes: Sequence[str], seed: int) -> tuple[Point, ...]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        config = fedagentgym.load_config(
            row, [*changes, f"seed={seed}", f"output.folder={folder}", "output.report=none"]
        )
        return read_curve(fedagentgym.train(config, force=True).folder)
