"""Tables of small experiments, each one command: `fedagentgym bench table1-tiny`.

A table is a set of runs (configuration x seed), each an ordinary run with its own folder; one that is there already is not
repeated, one that was interrupted goes on. What comes out is reported as it comes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.files import read_json, write_atomic
from fedagentgym.base.progress import progress
from fedagentgym.benchmarks import Measurement

FOLDER = Path("runs") / "table1-tiny"
TABLE1 = {
    "zero-shot": "tiny-alfworld:zero-shot",
    "local 3": "tiny-alfworld:local-3",
    "local 9": "tiny-alfworld:local-9",
    "local 16": "tiny-alfworld:local-16",
    "centralized": "tiny-alfworld:centralized",
    "fedagent": "tiny-alfworld",
}
QUICK = ("federation.rounds=4", "evaluation.tasks=60", "evaluation.every=4")


@dataclass(frozen=True)
class Row:
    """One method over its seeds."""

    name: str
    success: tuple[float, ...]
    env_steps: float
    megabytes: float

    @property
    def mean(self) -> float:
        return sum(self.success) / len(self.success)

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean over seeds (Student's t); infinite for a single seed."""
        count = len(self.success)
        if count < 2:
            return math.inf
        from scipy.stats import t

        deviation = math.sqrt(sum((value - self.mean) ** 2 for value in self.success) / (count - 1))
        return float(t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)


def table1_tiny(quick: bool = False) -> list[Measurement]:
    """The paper's table 1 in small: FedAgent against local and centralized training, three seeds, held-out success."""
    folder = FOLDER.with_name("table1-tiny-quick") if quick else FOLDER
    rows = run_table(folder, TABLE1, seeds=range(1 if quick else 3), changes=QUICK if quick else ())
    measured = [Measurement(f"{row.name}: held-out success", row.mean, "share") for row in rows]
    measured += [Measurement(f"{row.name}: half of the 95 % interval", row.half_width, "share") for row in rows]
    return measured + [Measurement(f"{row.name}: environment steps", row.env_steps, "per run") for row in rows]


def run_table(
    folder: Path, methods: Mapping[str, str], *, seeds: Sequence[int], changes: Sequence[str] = ()
) -> list[Row]:
    """All runs of a table; writes `table.json` and `table.md` into the folder."""
    rows = []
    with progress(folder.name, total=len(methods) * len(seeds)) as bar:
        for name, source in methods.items():
            records = []
            for seed in seeds:
                records.append(
                    _record(folder / f"{name.replace(' ', '-')}-seed{seed}", source, [f"seed={seed}", *changes])
                )
                bar.advance(method=name, seed=seed)
            rows.append(_row(name, records))
    write_atomic(folder / "table.json", canonical_json([asdict(row) for row in rows]) + "\n")
    write_atomic(folder / "table.md", markdown(rows))
    return rows


def _record(place: Path, source: str, changes: Sequence[str]) -> Mapping[str, Any]:
    """The record of a run: as it is if the run is there, else after running or finishing it."""
    from fedagentgym.running import resume, train

    if (place / "result.json").is_file():
        found: Mapping[str, Any] = read_json(place / "result.json")
        return found
    if (place / "config.yaml").is_file():
        return resume(place).record
    return train(source, [*changes, f"output.folder={place}", "output.sampled_episodes=0"]).record


def _row(name: str, records: Sequence[Mapping[str, Any]]) -> Row:
    return Row(
        name,
        tuple(record["final"]["overall"]["success"]["mean"] for record in records),
        sum(record["env_steps"] for record in records) / len(records),
        sum(record["headline_bytes"] for record in records) / len(records) / 1e6,
    )


def markdown(rows: Sequence[Row]) -> str:
    """The table as it stands in the documentation."""
    lines = [
        "| method | held-out success | 95 % over seeds | per seed | environment steps | MB |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        seeds = ", ".join(f"{value:.3f}" for value in row.success)
        interval = "" if math.isinf(row.half_width) else f"± {row.half_width:.3f}"
        lines.append(
            f"| {row.name} | {row.mean:.3f} | {interval} | {seeds} | {row.env_steps:,.0f} | {row.megabytes:.1f} |"
        )
    return "\n".join(lines) + "\n"
