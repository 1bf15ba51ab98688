"""The picture of docs/experiments/averaging-lora.md: each way to average adapters less FedIT, in every suite that was played."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pictures.canvas import Drawing
from fedagentgym.base.statistics import Spread, estimate_replicates
from fedagentgym.leaderboard.results import Result
from fedagentgym.leaderboard.suite import load_suite

ROW, LEFT, RIGHT = 26, 330, 790
"""Height of a row, and the left and right end of the scale, in pixels."""


@dataclass(frozen=True)
class Panel:
    """Rows of a suite that are compared with one of them."""

    title: str
    suite: str
    base: str
    rows: Sequence[str]


PANELS = (
    Panel(
        "four rounds of 20 steps",
        "averaging-lora-tiny-v1",
        "fedit",
        (
            *("ffa", "flexlora", "fedex", "flora", "merge"),
            *("fedit-long", "merge-long", "ram", "ram-plus", "full-weights"),
        ),
    ),
    *(
        Panel(
            title,
            "averaging-lora-rounds-tiny-v1",
            f"fedit-{steps}",
            [f"{rule}-{steps}" for rule in ("flexlora", "fedex", "flora", "merge-long", "ram")],
        )
        for title, steps in (("sixteen rounds of 5 steps", 5), ("one round of 80 steps", 80))
    ),
    Panel(
        "an A for each client",
        "averaging-lora-unlike-tiny-v1",
        "fedit-each",
        ("flexlora-each", "fedex-each", "flora-each"),
    ),
    Panel(
        "ranks 1 to 8",
        "averaging-lora-unlike-tiny-v1",
        "fedit-ranks",
        ("fedit-holders", "rank-1", "flexlora-ranks", "flora-ranks"),
    ),
    Panel(
        "clients that are alike",
        "averaging-lora-alike-tiny-v1",
        "fedit",
        ("flexlora", "fedex", "flora", "merge-long", "ram", "full-weights"),
    ),
)


def draw_averaging(results: Path) -> Drawing | None:
    """Draw the panels whose suites have results; None if none has."""
    found = [(panel, compare(panel, results)) for panel in PANELS if (results / panel.suite).is_dir()]
    if not found:
        return None
    reach = [end for _, rows in found for _, spread in rows for end in (spread.low, spread.high) if end is not None]
    span = max(0.0, *reach) - min(0.0, *reach)
    step = next(size for size in (0.05, 0.1, 0.2) if span <= 8 * size or size == 0.2)
    first, last = math.floor(min(0.0, *reach) / step), math.ceil(max(0.0, *reach) / step)
    low, high = first * step, last * step

    def place(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * (value - low) / (high - low)

    lines = sum(len(rows) + 1.4 for _, rows in found)
    bottom = 70 + ROW * lines
    drawing = Drawing("Rules that average adapters less FedIT, success on held-out tasks", bottom + 48)
    drawing.add_text(24, 36, "Success on held-out tasks less that of FedIT, in points, with 95 % intervals", bold=True)
    for number in range(first, last + 1):
        x, label = place(number * step), f"{100 * number * step:+.0f}" if number else "0"
        drawing.add_line([(x, 60), (x, bottom)], "edge" if number else "muted", 1)
        drawing.add_text(x, bottom + 24, label, "muted", anchor="middle")
    y = 70.0
    for panel, rows in found:
        drawing.add_text(24, y + 18, panel.title, bold=True)
        y += 1.2 * ROW
        for title, spread in rows:
            assert spread.low is not None and spread.high is not None
            drawing.add_text(40, y + 15, title, "muted")
            drawing.add_line([(place(spread.low), y + 10), (place(spread.high), y + 10)], "blue")
            drawing.add_circle(place(spread.mean), y + 10, 4, "blue")
            y += ROW
        y += 0.2 * ROW
    return drawing


def compare(panel: Panel, results: Path) -> list[tuple[str, Spread]]:
    """The rows of a panel by their titles: success less that of the base in the same worlds, not corrected for their number."""
    suite = load_suite(panel.suite)
    (scenario,) = suite.scenarios
    success = {}
    for name in (panel.base, *panel.rows):
        runs = Result(results / panel.suite / f"{name}.zip").numbers.runs[scenario]
        success[name] = {seed: run.means["success"] for seed, run in runs.items()}
    base = success[panel.base]
    return [
        (suite.baselines[name].title, estimate_replicates([success[name][seed] - base[seed] for seed in base]))
        for name in panel.rows
    ]
