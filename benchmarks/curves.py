"""The learning curve of a run: held-out success after each evaluated round, and its area.

Everything is read from `metrics.jsonl`, which follows from the commits of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fedagentgym.base.errors import DataError
from fedagentgym.federation.records import count_episodes, headline_bytes, read_metrics_log


class Point(NamedTuple):
    """The policy after a round: its success, and the cost so far."""

    round: int
    episodes: float
    megabytes: float
    success: float


def read_curve(folder: Path) -> tuple[Point, ...]:
    """The evaluated rounds of a run, in their order."""
    points, episodes = [], 0.0
    for record in read_metrics_log(folder / "metrics.jsonl"):
        episodes += count_episodes([record])
        if "evaluation" in record:
            spent = headline_bytes(record["bytes_total"]) / 1e6
            points.append(Point(int(record["round"]), episodes, spent, float(record["evaluation"]["success"])))
    if not points:
        raise DataError(f"{folder / 'metrics.jsonl'} has no evaluated round")
    return tuple(points)


def compute_area(curve: Sequence[Point]) -> float:
    """Mean success over the run: the area under the curve over episodes (trapezoids), divided by their number.

    Episodes before the first point, in which a method prepares, count with the success of the first point. The area of a run
    without episodes is the success of its last point.
    """
    length = curve[-1].episodes
    if length <= 0:
        return curve[-1].success
    parts = [curve[0].episodes * curve[0].success] + [
        (after.episodes - before.episodes) * (after.success + before.success) / 2 for before, after in pairwise(curve)
    ]
    return math.fsum(parts) / length
