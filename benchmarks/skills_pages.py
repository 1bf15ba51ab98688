"""The pages of suites in Skills: figures that the leaderboard's tables do not show, and pictures.

    python -m benchmarks skills-pages

A page, such as `docs/experiments/fedagent.md`, has text that was written by hand and the leaderboard's tables (`excerpts.py`).
This module adds, from the suite's results, success with and without a wrong belief, numbers from the records of runs, and
pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks import ROOT
from benchmarks.averaging import describe_averaging
from benchmarks.measurement import Measurement
from benchmarks.skills_results import (
    Diagnostic,
    TableResults,
    average_metric,
    describe_suite,
    read_suite,
    write_page,
)
from benchmarks.tables import Record

FOLDER = ROOT / "docs" / "experiments"
RESULTS = ROOT / "leaderboard" / "results"
SHARED = ("accuracy/skills", "format")
OBJECTIVES = 4
"""The number of a client's objectives in the first scenario of `skills-fedmoa-v1`."""


@dataclass(frozen=True)
class SuitePage:
    """A page of a suite."""

    suite: str
    diagnostics: Mapping[str, Diagnostic] = field(default_factory=dict)
    """Columns from the runs' records that explain a difference; they are not compared."""

    @property
    def name(self) -> str:
        """The name of the page's file, without its ending."""
        return self.suite.removeprefix("skills-").rpartition("-")[0]

    def read(self) -> TableResults | None:
        """The suite's results; None before it was played."""
        return read_suite(self.suite, RESULTS, self.diagnostics)


def average_weight(objective: str) -> Diagnostic:
    """The mean weight over clients of an objective that all have, after the last round; an equal share if no client trained."""

    def compute(rounds: Sequence[Record]) -> float:
        weights = [float(reported[f"weight/{objective}"]) for reported in rounds[-1].get("clients", {}).values()]
        return sum(weights) / len(weights) if weights else 1 / OBJECTIVES

    return compute


def average_weight_of_styles(rounds: Sequence[Record]) -> float:
    """The mean weight of a client's own styles after the last round; an equal share if no client trained."""
    weights = [
        float(weight)
        for reported in rounds[-1].get("clients", {}).values()
        for name, weight in reported.items()
        if name.startswith("weight/style/")
    ]
    return sum(weights) / len(weights) if weights else 1 / OBJECTIVES


FEDAGENT = SuitePage("skills-fedagent-v1")
PAGES = (
    FEDAGENT,
    SuitePage("skills-fedgrpo-v1", {"mean score that experts gave": average_metric("scores/mean")}),
    SuitePage(
        "skills-pubswap-v1",
        {
            "public answers": average_metric("public/answers", total=True),
            "public answers, right": average_metric("public/right", total=True),
            "public answers, swapped": average_metric("public/swapped", total=True),
            "length of an update": average_metric("update_norm"),
        },
    ),
    SuitePage(
        "skills-fedmoa-v1",
        {
            **{f"weight of {name} at the end": average_weight(name) for name in SHARED},
            "weight of a style at the end": average_weight_of_styles,
            **{
                f"reward for the layout, round {number}": average_metric("reward/format", at=number)
                for number in (1, 4)
            },
            **{
                f"agreement of {name}": average_metric(f"delta/{name}")
                for name in (*SHARED, "style/bare", "style/unit")
            },
            "success of clients on their own tasks while they learn, last round": average_metric("success", at=16),
            "length of an update": average_metric("update_norm"),
        },
    ),
    SuitePage("skills-methods-v1"),
)


def write_pages(quick: bool = False) -> list[Measurement]:
    """Write the tables and pictures of docs/experiments, and the drawings of results, from the committed results."""
    from benchmarks.pictures import PICTURES, make_drawings_of_results
    from benchmarks.skills_figures import draw_results
    from benchmarks.small_model import write_small_page

    written = []
    for page in PAGES:
        if (results := page.read()) is None:
            continue
        pictures = draw_results(results, FOLDER, page.name)
        write_page(FOLDER / f"{page.name}.md", f"{describe_suite(results)}\n{link_pictures(pictures)}\n")
        written.append(Measurement(f"docs/experiments/{page.name}.md", len(results.rows), "rows"))
    write_small_page()
    write_page(FOLDER / "averaging-lora.md", describe_averaging(RESULTS))
    for name, drawing in make_drawings_of_results().items():
        drawing.save(PICTURES / f"{name}.svg")
    return written


def link_pictures(pictures: Mapping[str, str]) -> str:
    """The Markdown of a page's pictures (title -> file)."""
    return "\n".join(f"![{title}]({file})" for title, file in pictures.items())
