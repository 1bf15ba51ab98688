"""A real language model in small: `fedagentgym bench run small-math`, two seeds, and what imitation alone gives.

The preset defines what is run (`experiment/presets/small-math.yaml`), docs/learning.md what was expected. Finished parts are not
repeated and interrupted ones continue, so the command may be stopped and repeated.
"""

from __future__ import annotations

from pathlib import Path

from fedagentgym.base.measurement import Measurement
from fedagentgym.experiment.plan import ExperimentTable, run_table
from fedagentgym.experiment.result_table import to_measurements

SMALL_MATH = ExperimentTable(
    "small-math",
    {"imitation alone": "small-math:imitation", "fedagent": "small-math"},
    pairs=[("fedagent", "imitation alone")],
    seeds=2,
    processes=1,
)
QUICK = SMALL_MATH.make_quick(
    SMALL_MATH.rows,
    [
        "warm_start.episodes=32",
        "warm_start.steps=4",
        "federation.rounds=1",
        "learning.tasks_per_step=1",
        "evaluation.tasks=8",
    ],
    seeds=1,
)


def run_math(quick: bool = False) -> list[Measurement]:
    """Success on unseen tasks after imitation, and after the clients' practice."""
    table = QUICK if quick else SMALL_MATH
    return to_measurements(run_table(table, Path("runs") / table.name))
