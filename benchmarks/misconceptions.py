"""Practice against a warm start's misconceptions: in every category in turn, an agent practises in this category alone.

    python -m benchmarks misconceptions-houses     python -m benchmarks misconceptions-math
    python -m benchmarks misconceptions-shop

A row is a client of the preset's variant `misconceptions` that trains by itself; a column is the success on held-out tasks of a
category. The diagonal of the differences to the start shows the effect of practice on its own category, the other cells show its
effect on other categories. `docs/experiments/misconceptions.md` has the hypotheses and the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.measurement import Measurement
from benchmarks.tables import (
    ExperimentTable,
    Row,
    difference,
    half_width,
    make_success_column,
    mean,
    run_folder,
    run_table,
    shown,
    success,
)

START = "start"


@dataclass(frozen=True)
class MisledPreset:
    """A preset whose clients have one category each (in alphabetical order, as `by_source` numbers them), and the categories with
    a wrong belief."""

    name: str
    source: str
    categories: tuple[str, ...]
    misled: tuple[str, ...]
    local_steps: int
    rounds: int
    evaluated: int
    quick: tuple[str, ...]
    repeats: int = 1

    def make_table(self, seeds: int = 3) -> ExperimentTable:
        """The table with a row for the start and one for practice in each category, all compared with the start."""
        alone = {
            f"practice in {category}": (
                f"algorithm={{name: local, client: {client}, local_steps: {self.local_steps}}}",
                f"federation={{rounds: {self.rounds}, workers: 0}}",
            )
            for client, category in enumerate(self.categories)
        }
        nothing = ("algorithm=zero-shot", "federation={rounds: 0, workers: 0}")
        return ExperimentTable(
            f"misconceptions-{self.name}",
            dict.fromkeys((START, *alone), self.source),
            {"all": success, **{category: make_success_column(category) for category in self.categories}},
            [(row, START) for row in alone],
            seeds,
            changes=(
                "evaluation.every=100",
                f"evaluation.tasks={self.evaluated}",
                f"evaluation.repeats={self.repeats}",
            ),
            row_changes={START: nothing, **alone},
        )

    def make_quick_table(self) -> ExperimentTable:
        """The start and practice of one step in one category, which shows that the benchmark runs."""
        table = self.make_table(seeds=1)
        own = f"practice in {self.misled[0]}"
        client = self.categories.index(self.misled[0])
        smaller = {
            START: table.row_changes[START],
            own: (f"algorithm={{name: local, client: {client}, local_steps: 1}}", "federation={rounds: 1, workers: 0}"),
        }
        changes = (*table.changes, "learning.tasks_per_step=1", "learning.group_size=2", *self.quick)
        return replace(table.make_quick([START, own], changes, seeds=1), row_changes=smaller, processes=1)


HOUSES = MisledPreset(
    "houses",
    "tiny-alfworld:misconceptions",
    ("Clean", "Cool", "Heat", "Look", "Pick", "Pick2"),
    ("Cool", "Heat"),
    local_steps=4,
    rounds=4,
    evaluated=200,
    quick=("warm_start.steps=2", "warm_start.episodes=8", "evaluation.tasks=24"),
)
MATH = MisledPreset(
    "math",
    "tiny-math:misconceptions",
    ("arithmetic", "counting", "fractions", "geometry", "linear equations", "number theory", "series", "systems"),
    ("number theory", "series"),
    local_steps=10,
    rounds=2,
    evaluated=400,
    quick=("warm_start.steps=2", "warm_start.episodes=8", "evaluation.tasks=24"),
)
SHOP = MisledPreset(
    "shop",
    "tiny-webshop:misconceptions",
    ("beauty", "electronics", "fashion", "garden", "grocery"),
    ("electronics", "fashion", "garden"),
    local_steps=10,
    rounds=3,
    evaluated=100,
    quick=("warm_start.steps=2", "warm_start.episodes=8", "evaluation.tasks=100", "evaluation.repeats=1"),
    repeats=3,
)


def run_houses(quick: bool = False) -> list[Measurement]:
    """The effect of practice in one kind of chore on this kind and on the others."""
    return _run(HOUSES, quick)


def run_math(quick: bool = False) -> list[Measurement]:
    """The effect of practice in one subject on this subject and on the others."""
    return _run(MATH, quick)


def run_shop(quick: bool = False) -> list[Measurement]:
    """The effect of practice in one department on this department and on the others."""
    return _run(SHOP, quick)


def _run(preset: MisledPreset, quick: bool) -> list[Measurement]:
    table = preset.make_quick_table() if quick else preset.make_table()
    return summarize_cures(preset, run_table(table, run_folder(table.name)))


def summarize_cures(preset: MisledPreset, rows: Sequence[Row]) -> list[Measurement]:
    """The success at the start, and for every misled category the gains from its own practice and from practice elsewhere."""
    practised = {row.name.removeprefix("practice in "): difference(rows, row.name, START) for row in rows[1:]}
    found = [_measure(f"start: {column}", values) for column, values in rows[0].values.items()]
    for category in preset.misled:
        if category not in practised:
            continue
        found.append(_measure(f"{category}: own practice adds", practised[category][category]))
        others = [gains[category] for practice, gains in practised.items() if practice != category]
        if others:
            found.append(
                _measure(f"{category}: practice elsewhere adds", [mean(seed) for seed in zip(*others, strict=True)])
            )
    return found


def _measure(name: str, values: Sequence[float]) -> Measurement:
    return Measurement(name, mean(values), "", f"{shown(half_width(values))} (95 % over seeds)".strip())
