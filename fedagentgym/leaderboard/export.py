"""`bench export`: one row a run as a parquet file, which viewers of data sets, pandas and duckdb show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import format_path, write_atomic
from fedagentgym.base.imports import require
from fedagentgym.leaderboard.results import read_suites

SPENT = ("episodes", "env_steps", "bytes", "optimizer_steps")


def write_parquet(places: Sequence[Path], file: Path) -> int:
    """Write a row for each run of the results in these places; returns their number.

    Columns: `suite`, `version`, `entry`, `title`, `scenario`, `seed`, `algorithm`, `agent`, `success` with `low` and `high`,
    `measure` and `value` of the suite's ranking, costs (`episodes`, `env_steps`, `bytes`, `optimizer_steps`, `seconds`), and the
    digests `config`, `pool`, `client_split`, `policy`, and `result`, that of the archive (null for a folder).
    """
    arrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
    rows = []
    for suite in read_suites(places):
        for entry in suite.entries:
            for (scenario, seed), record in entry.records.items():
                assert record.ranked is not None and record.tasks is not None
                success, means = record.ranked.overall["success"], entry.numbers.runs[scenario][seed].means
                rows.append(
                    {
                        "suite": suite.suite.name,
                        "version": suite.suite.version,
                        "entry": entry.name,
                        "title": entry.entry.title,
                        "scenario": scenario,
                        "seed": seed,
                        "algorithm": record.algorithm,
                        "agent": record.agent.model or str(record.agent.settings.get("name")),
                        "success": success["mean"],
                        "low": success["low"],
                        "high": success["high"],
                        "measure": suite.suite.rank_by,
                        "value": means.get(suite.suite.rank_by),
                        **{name: getattr(record.spent, name) for name in SPENT},
                        "seconds": record.made.seconds,
                        "config": record.config_digest,
                        "pool": record.tasks.pool,
                        "client_split": None if record.client_split is None else record.client_split.digest,
                        "policy": record.ranked.policy,
                        "result": None if entry.archive is None else entry.digest,
                    }
                )
    if not rows:
        raise DataError(f"no result lies in {', '.join(map(format_path, places))}")
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(rows), sink)
    write_atomic(file, sink.getvalue().to_pybytes())
    return len(rows)
