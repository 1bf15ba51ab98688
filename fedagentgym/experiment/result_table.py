"""The table of a plan's runs: mean and interval over seeds for each row, and differences between rows, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedagentgym.base.measurement import Measurement

Record = Mapping[str, Any]
Column = Callable[[Path, Record], float]
"""A number of a run, from its folder and its record."""


def success(folder: Path, record: Record) -> float:
    """Held-out success of the final policy."""
    return float(record["final"]["overall"]["success"]["mean"])


@dataclass(frozen=True)
class Row:
    """One configuration over its seeds: every column's numbers, in the order of the seeds."""

    name: str
    values: Mapping[str, tuple[float, ...]]
    env_steps: float
    megabytes: float
    seconds: float = 0.0
    config_digests: tuple[str, ...] = ()


def to_measurements(rows: Sequence[Row]) -> list[Measurement]:
    """The output of `fedagentgym bench` for a table."""
    return [
        Measurement(f"{row.name}: {column}", mean(values), "", f"{shown(half_width(values))} (95 % over seeds)".strip())
        for row in rows
        for column, values in row.values.items()
    ]


def summary(name: str, columns: Mapping[str, Column], runs: Sequence[tuple[Path, Record]]) -> Row:
    """A row from the runs of its seeds."""
    records = [record for _, record in runs]
    return Row(
        name,
        {label: tuple(column(folder, record) for folder, record in runs) for label, column in columns.items()},
        mean([record["env_steps"] for record in records]),
        mean([record["headline_bytes"] for record in records]) / 1e6,
        mean([record["seconds"] for record in records]),
        tuple(record["config_digest"] for record in records),
    )


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean over seeds (Student's t); infinite for a single seed."""
    count, middle = len(values), mean(values)
    if count < 2:
        return math.inf
    from scipy.stats import t

    deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (count - 1))
    return float(t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)


def difference(rows: Sequence[Row], row: str, base: str) -> dict[str, tuple[float, ...]]:
    """The differences of two rows, seed by seed: runs of the same seed share what the seed determines."""
    found = {each.name: each.values for each in rows}
    return {
        column: tuple(a - b for a, b in zip(values, found[base][column], strict=True))
        for column, values in found[row].items()
    }


def to_markdown(rows: Sequence[Row], differences: Mapping[str, Mapping[str, Sequence[float]]] | None = None) -> str:
    """The table as in the documentation: mean ± half of the 95 % interval over seeds (Student's t)."""
    columns = list(rows[0].values)
    lines = [
        f"| | {' | '.join(columns)} | {columns[0]}, per seed | environment steps | MB |",
        "|---|" + "---|" * (len(columns) + 3),
    ]
    for row in rows:
        cells = " | ".join(format_interval(row.values[column]) for column in columns)
        lines.append(
            f"| {row.name} | {cells} | {format_per_seed(row.values[columns[0]])} | {row.env_steps:,.0f} | {row.megabytes:.1f} |"
        )
    if differences:
        lines += ["", f"| difference, seed by seed | {' | '.join(columns)} | {columns[0]}, per seed |"]
        lines += ["|---|" + "---|" * (len(columns) + 1)]
        for name, found in differences.items():
            cells = " | ".join(format_interval(found[column], sign="+") for column in columns)
            lines.append(f"| {name} | {cells} | {format_per_seed(found[columns[0]], '+')} |")
    return "\n".join(lines) + "\n"


def format_interval(values: Sequence[float], sign: str = "") -> str:
    return f"{mean(values):{sign}.3f} {shown(half_width(values))}".strip()


def shown(width: float) -> str:
    return "" if math.isinf(width) else f"± {width:.3f}"


def format_per_seed(values: Sequence[float], sign: str = "") -> str:
    return ", ".join(f"{value:{sign}.3f}" for value in values)
