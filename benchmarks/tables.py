"""A table of small experiments: rows (configurations) times seeds, each cell an ordinary run in a folder of its own.

A finished run is not repeated, an interrupted run is resumed, and a folder with another configuration is refused. The runs are
independent, so they may be played in parallel processes with the same results. A table contains every seed of every row, good or
bad.

folder/NAME-seedN/   the runs        folder/table.json, table.md   the table
"""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import OptionError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.process import count_usable_cores
from fedagentgym.base.progress import set_verbosity, show_progress
from fedagentgym.base.statistics import (
    MIN_REPLICATES,
    Difference,
    compare_replicates,
    compute_log_odds,
    find_half_width,
)
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.opened import prepare_agents
from fedagentgym.experiment.run import finish_or_read
from fedagentgym.leaderboard.entries import slugify
from fedagentgym.runs.folder import RunFolder

Record = Mapping[str, Any]
Column = Callable[[Path, Record], float]
"""A number of a run, from its folder and its record."""


def success(folder: Path, record: Record) -> float:
    """Held-out success of the final policy."""
    return float(record["final"]["overall"]["success"]["mean"])


def make_success_column(category: str) -> Column:
    """Held-out success on the tasks of one category."""

    def read_category_success(folder: Path, record: Record) -> float:
        return float(record["final"]["categories"][category]["success"]["mean"])

    return read_category_success


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
    """The figures of a table, for the command line."""
    return [
        Measurement(f"{row.name}: {column}", mean(values), "", f"{shown(half_width(values))} (95 % over seeds)".strip())
        for row in rows
        for column, values in row.values.items()
    ]


def summary(name: str, columns: Mapping[str, Column], runs: Sequence[tuple[Path, Record]]) -> Row:
    """Make a row from the runs of its seeds."""
    records = [record for _, record in runs]
    return Row(
        name,
        {label: tuple(column(folder, record) for folder, record in runs) for label, column in columns.items()},
        mean([record["spent"]["env_steps"] for record in records]),
        mean([record["spent"]["bytes_down"] + record["spent"]["bytes_up"] for record in records]) / 1e6,
        mean([record["made"]["seconds"] for record in records]),
        tuple(record["config_digest"] for record in records),
    )


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean over seeds (Student's t); infinite for fewer than `MIN_REPLICATES`."""
    return find_half_width(values) if len(values) >= MIN_REPLICATES else math.inf


def difference(rows: Sequence[Row], row: str, base: str) -> dict[str, tuple[float, ...]]:
    """The differences of two rows, seed by seed: runs of the same seed share what the seed determines."""
    found = {each.name: each.values for each in rows}
    return {
        column: tuple(a - b for a, b in zip(values, found[base][column], strict=True))
        for column, values in found[row].items()
    }


def compare_rows(
    rows: Sequence[Row], pairs: Sequence[tuple[str, str]], column: str, margin: float = 0.0
) -> list[Difference]:
    """The differences of these pairs in one column of shares; not yet corrected."""
    odds = [replace(one, values={column: tuple(map(compute_log_odds, one.values[column]))}) for one in rows]
    return [
        compare_replicates(difference(rows, row, base)[column], margin, difference(odds, row, base)[column])
        for row, base in pairs
    ]


def to_markdown(rows: Sequence[Row], differences: Mapping[str, Mapping[str, Sequence[float]]] | None = None) -> str:
    """The table as in the documentation: mean ± half of the 95 % interval over seeds (Student's t), if there are enough seeds."""
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


# ---- the runs ------------------------------------------------------------------------------------------------------

RUNS = ROOT / "runs"
CELL_OUTPUT = ("output.sampled_episodes=0",)


@dataclass(frozen=True)
class ExperimentTable:
    """The runs of a table and its columns. Rows are configurations; `changes` apply to all rows, `row_changes` to single rows."""

    name: str
    rows: Mapping[str, str]
    columns: Mapping[str, Column] = field(default_factory=lambda: {"held-out success": success})
    pairs: Sequence[tuple[str, str]] = ()
    seeds: int = 3
    changes: tuple[str, ...] = ()
    processes: int = 0
    first_seed: int = 0
    row_changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    world: Callable[[int, str], Sequence[str]] | None = None
    """The changes that give a seed its world, by seed and the row's source; by default all seeds have the same world."""

    def make_quick(
        self, rows: Sequence[str] | Mapping[str, str], changes: Sequence[str], seeds: int = 3
    ) -> ExperimentTable:
        """The table of `--quick`: some of the rows, or other rows, with changes to all of them."""
        chosen = dict(rows) if isinstance(rows, Mapping) else {name: self.rows[name] for name in rows}
        return replace(self, name=f"{self.name}-quick", rows=chosen, changes=tuple(changes), seeds=seeds)


@dataclass(frozen=True)
class TableCell:
    """A run of a table."""

    row: str
    source: str
    changes: tuple[str, ...]
    folder: Path


def run_folder(name: str) -> Path:
    """The folder `runs/NAME` of the repository, independent of the current folder."""
    return RUNS / name


def run_table(table: ExperimentTable, folder: Path, changes: Sequence[str] = ()) -> list[Row]:
    """Play all runs of a table, and return its rows. Writes `table.json` and `table.md` into the folder."""
    given = (*table.changes, *changes)
    cells = list_cells(table, folder, changes)
    configs = [(load_cell_config(cell), RunFolder(cell.folder).is_finished) for cell in cells]
    prepare_agents([config for config, is_finished in configs if not is_finished])
    records: dict[Path, Record] = {}
    with show_progress(folder.name, total=len(cells)) as bar:
        for cell, record in run_cells(cells, table.processes or count_usable_cores()):
            records[cell.folder] = record
            bar.advance(row=cell.row, run=cell.folder.name)
    rows = [
        summary(name, table.columns, [(cell.folder, records[cell.folder]) for cell in cells if cell.row == name])
        for name in table.rows
    ]
    compared = [(row, base) for row, base in table.pairs if row in table.rows and base in table.rows]
    differences = {f"{row} - {base}": difference(rows, row, base) for row, base in compared}
    document = {
        "table": table.name,
        "changes": given,
        "rows": [asdict(row) for row in rows],
        "differences": differences,
    }
    write_atomic(folder / "table.json", canonical_json(document) + "\n")
    write_atomic(folder / "table.md", to_markdown(rows, differences))
    return rows


def list_cells(table: ExperimentTable, folder: Path, changes: Sequence[str] = ()) -> list[TableCell]:
    """The runs of a table in the order of seeds, so that the finished runs of an interrupted table can be compared."""
    cells = []
    for seed in range(table.first_seed, table.first_seed + table.seeds):
        for name, source in table.rows.items():
            world = () if table.world is None else table.world(seed, source)
            given = (f"seed={seed}", *world, *table.row_changes.get(name, ()), *table.changes, *changes)
            cells.append(TableCell(name, source, given, folder / f"{slugify(name)}-seed{seed}"))
    return cells


def load_cell_config(cell: TableCell) -> RunConfig:
    """The configuration of a run; a run that is already in its folder must have the same configuration."""
    config = load_config(cell.source, [*cell.changes, f"output.folder={json.dumps(str(cell.folder))}", *CELL_OUTPUT])
    present = cell.folder / "config.yaml"
    if present.is_file() and load_config(present).digest != config.digest:
        raise OptionError(f"{cell.folder} holds a run with another configuration: move or delete it, and start again")
    return config


def run_cells(cells: Sequence[TableCell], processes: int) -> Iterator[tuple[TableCell, Record]]:
    """The records of all runs, in the order of the cells, played in up to `processes` processes."""
    if processes <= 1:
        yield from ((cell, run_cell(cell)) for cell in cells)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(cells)), context, initializer=_silence_progress) as pool:
        try:
            yield from zip(cells, pool.map(run_cell, cells), strict=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _silence_progress() -> None:
    set_verbosity("quiet")


def run_cell(cell: TableCell) -> Record:
    """The record of a run, which is started, resumed or, if it is finished, only read."""
    finish_or_read(load_cell_config(cell), force=True)
    return read_record(cell.folder)


def read_record(folder: Path) -> Record:
    """The record of a finished run together with its configuration."""
    run = RunFolder(folder)
    return {**run.record.model_dump(mode="json"), "config": run.config}
