"""The length of the policy's change in every round under rules that average adapters, and its gap to the clients' mean change.

    python -m benchmarks adapter-steps

Every rule trains by itself, as in the suites: four rounds of 20 local steps, sixteen of five, and four of 20 where clients are
alike. Lengths and gaps are those of the merge table (`benchmarks/merge_table.py`). FedEx-LoRA, FLoRA and merging end at the mean
by construction and are not in the table. Table: docs/experiments/averaging-lora.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.findings import Findings, list_measurements, write_tables
from benchmarks.measurement import Measurement
from benchmarks.merge_table import (
    PAGE,
    QUICK,
    QUICK_CHANGES,
    RULES,
    SOURCE,
    WORLDS,
    Step,
    find_step,
    make_config,
    play_rounds,
)
from fedagentgym.base.progress import show_progress
from fedagentgym.experiment.opened import Run

PLACE = "adapter-steps"
TRAINED = ("FedIT", "FedIT x 2", "rank-4 SVD", "RAM, density 0.2", "RAM+, density 0.2")
"""Rules of the merge table whose change is not the mean."""


class Situation(NamedTuple):
    """A schedule: local steps of a round, and the rounds that are shown."""

    source: str
    steps: int
    shown: Sequence[int]


SITUATIONS: Mapping[str, Situation] = {
    "four rounds of 20": Situation(SOURCE, 20, (1, 2, 3, 4)),
    "sixteen rounds of 5": Situation(SOURCE, 5, (1, 4, 8, 16)),
    "clients alike, four rounds of 20": Situation(f"{SOURCE},iid", 20, (1, 2, 3, 4)),
}


def run(quick: bool = False) -> list[Measurement]:
    """Length and gap of every round of five rules, in four worlds; about half an hour of one core. Writes the page."""
    worlds = (0,) if quick else WORLDS
    situations = {"two rounds": Situation(QUICK.source, 1, (1, 2))} if quick else SITUATIONS
    tables = {}
    with show_progress("adapter steps", total=len(worlds) * len(situations) * len(TRAINED)) as bar:
        for place, situation in situations.items():
            rows = {}
            for rule in TRAINED:
                found = []
                for world in worlds:
                    found.append(measure(rule, situation, world, quick=quick))
                    bar.advance(world=str(world))
                rows[rule] = np.mean(found, axis=0)
            tables[place] = tabulate(rows, situation.shown)
    if not quick:
        write_tables(PAGE, PLACE, tables)
    return list_measurements(tables)


def measure(rule: str, situation: Situation, world: int, *, quick: bool = False) -> list[Step]:
    """The steps of a rule's run in a world, in the rounds that are shown."""
    config = make_config(situation.source, world, rank=4, changes=QUICK_CHANGES if quick else ())
    with tempfile.TemporaryDirectory() as scratch:
        opened = Run.open(config, Path(scratch))
        plain = {**RULES[rule], "local_steps": situation.steps}
        rounds = play_rounds(plain, opened, seed=world, rounds=max(situation.shown), folder=Path(scratch))
    shown = [rounds[number] for number in situation.shown]
    return [find_step(one.state, one.updates, one.after) for one in shown]


def tabulate(rows: Mapping[str, Any], shown: Sequence[int]) -> Findings:
    """Means over worlds, a column for each round."""
    columns = {f"{measure}, round {number}": ".2f" for measure in Step._fields for number in shown}
    cells = {name: tuple(float(cell) for cell in steps.T.ravel()) for name, steps in rows.items()}
    return Findings("rule", columns, cells)
