"""The FedAgent paper's first table in small, with three seeds; `--quick` for one seed and fewer rounds.

    python -m benchmarks table1-tiny

Rows are presets with variants (`experiment/presets/`), so that every run of the table is also a run of its own, for example
`fedagentgym train tiny-alfworld:local-3`. The results are written to `runs/NAME/table.md`, whatever they are, and kept in
`benchmarks/results/`.
"""

from __future__ import annotations

from benchmarks.measurement import Measurement
from benchmarks.tables import ExperimentTable, run_folder, run_table, to_measurements

TABLE1 = ExperimentTable(
    "table1-tiny",
    {
        "zero-shot": "tiny-alfworld:zero-shot",
        "local 3": "tiny-alfworld:local-3",
        "local 9": "tiny-alfworld:local-9",
        "local 16": "tiny-alfworld:local-16",
        "centralized": "tiny-alfworld:centralized",
        "fedagent": "tiny-alfworld",
    },
    processes=1,
)
TABLE1_QUICK = TABLE1.make_quick(
    TABLE1.rows, ("federation.rounds=4", "evaluation.tasks=60", "evaluation.every=4"), seeds=1
)


def run_table1_tiny(quick: bool = False) -> list[Measurement]:
    """FedAgent against local and centralized training (its paper's table 1)."""
    table = TABLE1_QUICK if quick else TABLE1
    return to_measurements(run_table(table, run_folder(table.name)))
