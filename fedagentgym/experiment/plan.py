"""A table of small experiments: rows (configurations) times seeds, each cell an ordinary run in a folder of its own.

A finished run is not repeated, an interrupted run is resumed, and a folder with another configuration is refused. The runs are
independent, so they may be played in parallel processes with the same results. A table contains every seed of every row,
whatever its result.

folder/NAME-seedN/   the runs        folder/table.json, table.md   the table

Tables with common rows may keep their runs in one folder (`shared`). There a run is named by its source, its seed and the
digest of its configuration, so a row of two tables is played once, and changed settings make new runs.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import OptionError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.processor import count_usable_cores
from fedagentgym.base.progress import set_verbosity, show_progress
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.result_table import Column, Record, Row, difference, success, summary, to_markdown
from fedagentgym.experiment.settings import RunConfig

CELL_OUTPUT = ("output.sampled_episodes=0",)


@dataclass(frozen=True)
class ExperimentTable:
    """What is run and which columns are shown: rows are configurations, `changes` apply to every one of them, `row_changes` to
    one."""

    name: str
    rows: Mapping[str, str]
    columns: Mapping[str, Column] = field(default_factory=lambda: {"held-out success": success})
    pairs: Sequence[tuple[str, str]] = ()
    seeds: int = 3
    changes: tuple[str, ...] = ()
    processes: int = 0
    first_seed: int = 0
    row_changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def make_quick(
        self, rows: Sequence[str] | Mapping[str, str], changes: Sequence[str], seeds: int = 3
    ) -> ExperimentTable:
        """The grid of `--quick`: some of the rows, or others, and changes to all of them."""
        chosen = dict(rows) if isinstance(rows, Mapping) else {name: self.rows[name] for name in rows}
        return replace(self, name=f"{self.name}-quick", rows=chosen, changes=tuple(changes), seeds=seeds)


@dataclass(frozen=True)
class TableCell:
    """A run of a table."""

    row: str
    source: str
    changes: tuple[str, ...]
    folder: Path


def run_table(
    table: ExperimentTable, folder: Path, changes: Sequence[str] = (), shared: Path | None = None
) -> list[Row]:
    """All runs of a table; writes `table.json` and `table.md` into the folder."""
    given = (*table.changes, *changes)
    cells = list_cells(table, folder, changes, shared)
    configs = [load_cell_config(cell) for cell in cells]
    prepare_agents(configs)
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
    told = {"table": table.name, "changes": given, "rows": [asdict(row) for row in rows], "differences": differences}
    write_atomic(folder / "table.json", canonical_json(told) + "\n")
    write_atomic(folder / "table.md", to_markdown(rows, differences))
    return rows


def list_cells(
    table: ExperimentTable, folder: Path, changes: Sequence[str] = (), shared: Path | None = None
) -> list[TableCell]:
    """The runs of a table seed by seed, so that an interrupted table has comparable finished runs."""
    cells = []
    for seed in range(table.first_seed, table.first_seed + table.seeds):
        for name, source in table.rows.items():
            given = (f"seed={seed}", *table.row_changes.get(name, ()), *table.changes, *changes)
            if shared is None:
                place = folder / f"{slugify(name)}-seed{seed}"
            else:
                identity = load_config(source, [*given, *CELL_OUTPUT]).digest.removeprefix("sha256:")
                place = shared / f"{slugify(source)}-seed{seed}-{identity[:12]}"
            cells.append(TableCell(name, source, given, place))
    return cells


# ---- the runs ---------------------------------------------------------------------------------------------------------


def load_cell_config(cell: TableCell) -> RunConfig:
    """The configuration of a run; a run that is already in its folder must have the same."""
    config = load_config(cell.source, [*cell.changes, f"output.folder={cell.folder}", *CELL_OUTPUT])
    present = cell.folder / "config.yaml"
    if present.is_file() and load_config(present).digest != config.digest:
        raise OptionError(f"{cell.folder} holds a run with another configuration: move or delete it, and start again")
    return config


def prepare_agents(configs: Sequence[RunConfig]) -> None:
    """Make the agents from which the runs start, each once, before several processes need them."""
    from fedagentgym.experiment.run import resolve_agent

    made = []
    for config in configs:
        plain = config.plain()
        start = (plain["env"]["id"], plain["env"]["options"], plain["warm_start"], plain["agent"])
        if start not in made:
            made.append(start)
            resolve_agent(config)


def run_cells(cells: Sequence[TableCell], processes: int) -> Iterator[tuple[TableCell, Record]]:
    """The records of all runs, in the order of the cells, played in up to this many processes."""
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
    """The record of a run: of the finished run, or after running or resuming it."""
    from fedagentgym.experiment.run import read_result, resume, train

    if (cell.folder / "result.json").is_file():
        return read_result(cell.folder)
    if (cell.folder / "config.yaml").is_file():
        return resume(cell.folder).record
    return train(load_cell_config(cell)).record


def slugify(name: str) -> str:
    """A row's name as part of a folder's."""
    return re.sub(r"[^\w.]+", "-", name).strip("-")
