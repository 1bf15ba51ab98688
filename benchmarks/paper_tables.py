"""The FedAgent paper's first table at small scale, with three seeds; `--quick` has one seed and fewer rounds.

    python -m benchmarks table1-tiny

Rows are presets with variants (`experiment/presets/`), so every run of the table can also be made by itself, for example by
`fedagentgym train tiny-alfworld:local-3`. The results are written to `runs/NAME/table.md`; those of the documentation are kept in
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
    """FedAgent compared with local and centralized training (table 1 of its paper)."""
    table = TABLE1_QUICK if quick else TABLE1
    return to_measurements(run_table(table, run_folder(table.name)))
