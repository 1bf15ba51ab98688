"""The pictures of README and the documentation: `make pictures` draws docs/pictures/*.svg, `make screenshots` takes the PNG.

Drawings are SVG with their own background, light or dark as set in the reader's system. Drawing again gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import ROOT
from benchmarks.measurement import Measurement

if TYPE_CHECKING:
    from benchmarks.pictures.canvas import Drawing

PICTURES = ROOT / "docs" / "pictures"


def draw_all(quick: bool = False, folder: Path = PICTURES) -> list[Measurement]:
    """Draw the diagrams, the divisions of tasks, the recording of the demo, and README's pictures."""
    measured = []
    for name, drawing in make_drawings().items():
        path = folder / f"{name}.svg"
        drawing.save(path)
        measured.append(Measurement(f"docs/pictures/{path.name}", path.stat().st_size / 1000, "kB", "at most 60"))
    return measured


def make_drawings() -> dict[str, Drawing]:
    """Every drawing by its name."""
    from benchmarks.pictures.diagrams import draw_round, draw_whole
    from benchmarks.pictures.divisions import DIVISIONS
    from benchmarks.pictures.recording import draw_demo

    drawn = {"whole": draw_whole(), "round": draw_round(), "demo": draw_demo()}
    return drawn | {name: draw() for name, draw in DIVISIONS.items()} | make_drawings_of_results()


def make_drawings_of_results() -> dict[str, Drawing]:
    """The drawings of the committed results, by their names."""
    from benchmarks.pictures.averaging import draw_averaging
    from benchmarks.pictures.learned import draw_evolution, draw_ppo
    from benchmarks.pictures.results import SMALL, draw_overview, draw_small_model
    from benchmarks.skills_pages import FEDAGENT, RESULTS
    from benchmarks.skills_results import read_suite

    drawn = {}
    if (results := FEDAGENT.read()) is not None:
        drawn["overview"] = draw_overview(results)
    if (small := read_suite(SMALL, RESULTS)) is not None:
        drawn["small-model"] = draw_small_model(small)
    if (averaging := draw_averaging(RESULTS)) is not None:
        drawn["averaging-lora"] = averaging
    if (evolution := draw_evolution()) is not None:
        drawn["evolution-strategies"] = evolution
    if (ppo := draw_ppo()) is not None:
        drawn["ppo"] = ppo
    return drawn
