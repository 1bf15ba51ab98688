"""The picture of docs/experiments/averaging-lora.md: each way to average adapters, compared with FedIT in every played suite."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.averaging import compare, list_played
from benchmarks.pictures.canvas import Drawing

ROW, LEFT, RIGHT = 26, 360, 790
"""Height of a row, and the left and right end of the scale, in pixels."""


def draw_averaging(results: Path) -> Drawing | None:
    """Draw the panels whose suites have results; None if none has."""
    found = [(panel, compare(panel, results)) for panel in list_played(results)]
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
