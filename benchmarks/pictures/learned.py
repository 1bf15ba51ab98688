"""The pictures of kept learning curves: PPO by policy step, and evolution strategies by bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean

from benchmarks.evolution import CURVES as EVOLUTION
from benchmarks.kept_curves import KeptCurve, load_curves
from benchmarks.learning import PPO_CURVES
from benchmarks.pictures.canvas import NARROW, Drawing
from benchmarks.pictures.results import Curve, Frame, draw_lines

FRAME = Frame(64, 78, 184, 160)
PPO = {"tiny-alfworld": ("houses", "blue"), "tiny-guess": ("hidden number", "green")}
METHODS = {"fedavg-grpo": ("FedAvg-GRPO", "blue"), "es": ("ES", "red")}


def draw_ppo() -> Drawing | None:
    """Success of two recipes by PPO over their policy steps; None if they were not run."""
    kept = load_curves(PPO_CURVES)
    if kept is None:
        return None
    curves = [_make_curve(kept[name], *PPO[name], at=_share_of(kept[name].x[-1])) for name in PPO]
    drawing = Drawing("PPO with a value head: success over training on houses and on a hidden number", 282, NARROW)
    drawing.add_text(24, 32, "PPO: success on held-out tasks,", bold=True)
    drawing.add_text(24, 54, "mean and range of three seeds", bold=True)
    steps = " and ".join(f"{kept[name].x[-1]:.0f}" for name in PPO)
    draw_lines(drawing, curves, FRAME, 0.2, f"{steps} policy steps")
    return drawing


def draw_evolution() -> Drawing | None:
    """Success of evolution strategies and of FedAvg-GRPO over the bytes that they sent; None if they were not run."""
    kept = load_curves(EVOLUTION)
    if kept is None:
        return None
    curves = [_make_curve(kept[name], *METHODS[name], at=_log_kilobytes) for name in METHODS]
    drawing = Drawing("Success over bytes: evolution strategies and FedAvg-GRPO", 282, NARROW)
    drawing.add_text(24, 32, "Success on held-out tasks by what was sent,", bold=True)
    drawing.add_text(24, 54, "mean and range of three seeds", bold=True)
    draw_lines(drawing, curves, FRAME, 0.2, "log of bytes", first=1.0)
    below = FRAME.top + FRAME.height + 28
    drawing.add_text(FRAME.left, below, "start", "muted")
    drawing.add_text(FRAME.left + FRAME.width, below, f"{kept['fedavg-grpo'].x[-1]:.0f} MB", "muted", anchor="end")
    return drawing


def _make_curve(kept: KeptCurve, label: str, color: str, *, at: Callable[[float], float]) -> Curve:
    """The mean over the seeds, with a band from the lowest to the highest seed."""
    points = [
        (at(x), mean(success), min(success), max(success)) for x, success in zip(kept.x, kept.success, strict=True)
    ]
    return Curve(label, color, points)


def _log_kilobytes(megabytes: float) -> float:
    return math.log10(max(1000 * megabytes, 10.0))


def _share_of(last: float) -> Callable[[float], float]:
    return lambda step: step / last
