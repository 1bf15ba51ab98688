"""The pictures of README and the documentation: `make pictures` draws docs/pictures/*.svg, `make screenshots` takes the PNG files there.

Drawings are SVG with a background of their own, light or dark as the reader's system asks, and the same bytes every time.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.measurement import Measurement

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"


def draw_all(quick: bool = False) -> list[Measurement]:
    """Draw the diagrams, the divisions of tasks, README's picture, and the recording of the demo."""
    from benchmarks.pictures.diagrams import draw_round, draw_whole
    from benchmarks.pictures.divisions import DIVISIONS
    from benchmarks.pictures.overview import draw_kept_overview
    from benchmarks.pictures.recording import draw_demo

    drawings = {"whole": draw_whole, "round": draw_round, "overview": draw_kept_overview, "demo": draw_demo, **DIVISIONS}
    measured = []
    for name, draw in drawings.items():
        path = PICTURES / f"{name}.svg"
        draw().save(path)
        measured.append(Measurement(f"docs/pictures/{path.name}", path.stat().st_size / 1000, "kB", "at most 60"))
    return measured
