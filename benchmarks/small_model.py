"""A small real language model, SmolLM2-135M: two tables of docs/experiments/real-model.md.

    python -m benchmarks small-skills-factors each setting that may decide, changed by itself
    python -m benchmarks small-math              generated mathematics

A finished table is kept in benchmarks/results, and `python -m benchmarks skills-pages` writes the page from the kept tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import ROOT
from benchmarks.kept_results import collect_results, load_results, save_results
from benchmarks.measurement import Measurement
from benchmarks.skills_results import TableResults, write_page
from benchmarks.tables import (
    ExperimentTable,
    Record,
    difference,
    list_cells,
    run_folder,
    run_table,
    success,
    to_markdown,
    to_measurements,
)

KEPT = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "experiments" / "real-model.md"
TUNING_SEEDS = 100
"""The first seed of these tables; the suite `methods-small-skills-v1` reports seeds from 0 on."""
QUICK_CHANGES = (
    "warm_start.episodes=32",
    "warm_start.steps=2",
    "federation={rounds: 1, workers: 0}",
    "learning.tasks_per_step=1",
    "evaluation.tasks=8",
)


def _make_world(seed: int, source: str) -> Sequence[str]:
    """The changes that give a seed procedures, misconceptions, tasks and a split of its own, as in the suite."""
    return (f"env.options.seed={seed}", f"warm_start.misconceptions.seed={seed}", f"partition.seed={seed}")


def start(folder: Path, record: Record) -> float:
    """Held-out success of the agent that has only imitated."""
    return float(record["curve"][0]["overall"]["success"]["mean"])


COLUMNS = {"held-out success": success, "at the start": start}
FACTORS = ExperimentTable(
    "small-skills-factors",
    {
        "as it is": "small-skills",
        "no bonus": "small-skills:no-entropy-bonus",
        "named once": "small-skills:category-named-once",
        "8 x 8": "small-skills:tasks-per-step-8",
        "rate 3e-4": "small-skills:learning-rate-3e-4",
    },
    COLUMNS,
    pairs=[(row, "as it is") for row in ("no bonus", "named once", "8 x 8", "rate 3e-4")],
    seeds=2,
    changes=("federation.workers=0", "evaluation={every: 8, tasks: 128}"),
    row_changes={
        **dict.fromkeys(("as it is", "no bonus", "named once", "rate 3e-4"), ("federation.rounds=8",)),
        "8 x 8": ("federation.rounds=4",),
    },
    processes=1,
    first_seed=TUNING_SEEDS,
    world=_make_world,
)
MATH = ExperimentTable(
    "small-math",
    {"fedagent": "small-math"},
    COLUMNS,
    seeds=3,
    changes=("federation.workers=0",),
    processes=1,
)
TABLES = (FACTORS, MATH)


def make_quick(table: ExperimentTable) -> ExperimentTable:
    """The quick form of a table: one round of every row, with an agent that has imitated very little."""
    return replace(table.make_quick(table.rows, (*table.changes, *QUICK_CHANGES), seeds=1), row_changes={})


def run_factors(quick: bool = False) -> list[Measurement]:
    """Success of small-skills with each setting that may decide whether it learns, changed by itself."""
    return _run(FACTORS, quick)


def run_math(quick: bool = False) -> list[Measurement]:
    """Success on held-out tasks of mathematics after imitation, and after the clients' practice."""
    return _run(MATH, quick)


def _run(table: ExperimentTable, quick: bool) -> list[Measurement]:
    chosen = make_quick(table) if quick else table
    folder = run_folder(chosen.name)
    rows = run_table(chosen, folder)
    results = collect_results(chosen, list_cells(chosen, folder))
    assert results is not None
    save_results(results, folder / "results.json")
    return to_measurements(rows)


def load_kept() -> dict[str, TableResults]:
    """The committed results, by the names of their tables."""
    files = {table.name: KEPT / f"{table.name}.json" for table in TABLES}
    return {name: load_results(file) for name, file in files.items() if file.is_file()}


def write_small_page(page: Path = PAGE) -> None:
    """Write the tables into their page."""
    kept = load_kept()
    found = [describe(table, kept[table.name]) for table in TABLES if table.name in kept]
    write_page(page, "\n".join(found))


def describe(table: ExperimentTable, results: TableResults) -> str:
    """The rows of a table and their differences, seed by seed."""
    rows = [replace(one.row, values={name: one.row.values[name] for name in table.columns}) for one in results.rows]
    differences = {f"{row} - {base}": difference(rows, row, base) for row, base in table.pairs}
    return f"`{table.name}`, seeds {', '.join(map(str, results.rows[0].seeds))}\n\n{to_markdown(rows, differences)}"
