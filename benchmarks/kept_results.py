"""The results of a table of runs as one file of plain numbers, which is committed with the source.

runs/small-math/results.json      every finished seed of every row      benchmarks/results/small-math.json      the same, kept
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.curves import Point, read_curve
from benchmarks.skills_results import RowResults, Skill, TableResults, collect_skills
from benchmarks.tables import ExperimentTable, Record, Row, TableCell, read_record, summary
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import read_json, write_atomic
from fedagentgym.runs.folder import RunFolder


def collect_results(table: ExperimentTable, cells: Iterable[TableCell]) -> TableResults | None:
    """The results of the finished runs. A row has the seeds whose run is finished; rows without a finished run are left out."""
    finished: dict[str, list[tuple[Path, Record]]] = {name: [] for name in table.rows}
    for cell in cells:
        if RunFolder(cell.folder).is_finished:
            finished[cell.row].append((cell.folder, read_record(cell.folder)))
    rows = [_collect_row(name, table, runs) for name, runs in finished.items() if runs]
    return TableResults(table.name, tuple(rows)) if rows else None


def _collect_row(name: str, table: ExperimentTable, runs: Sequence[tuple[Path, Record]]) -> RowResults:
    return RowResults(
        summary(name, table.columns, runs),
        tuple(int(record["seed"]) for _, record in runs),
        tuple(read_curve(folder) for folder, _ in runs),
        collect_skills([record for _, record in runs]),
        {},
    )


def save_results(results: TableResults, path: Path) -> None:
    """Write the results as JSON."""
    write_atomic(path, canonical_json(asdict(results)) + "\n")


def load_results(path: Path) -> TableResults:
    """The results that `save_results` wrote."""
    plain = read_json(path)
    try:
        assert isinstance(plain, dict)
        return TableResults(plain["table"], tuple(_read_row(row) for row in plain["rows"]))
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{path}: malformed, not the results of a table") from None


def _read_row(plain: dict[str, Any]) -> RowResults:
    values = {name: tuple(map(float, numbers)) for name, numbers in plain["row"]["values"].items()}
    row = Row(**{**plain["row"], "values": values, "config_digests": tuple(plain["row"]["config_digests"])})
    curves = tuple(tuple(Point(*point) for point in curve) for curve in plain["curves"])
    skills = {category: Skill(**one) for category, one in plain["skills"].items()}
    return RowResults(row, tuple(plain["seeds"]), curves, skills, {})
