"""Finished cells of the methods track, each packed as a result of its own, so that an interrupted suite loses nothing.

    STORE/SUITE/ENTRY/SCENARIO-seedN/     a packed result with a single cell

`bench run --cells STORE` writes a cell as soon as it is finished, and continues from those that are there, also on another
machine.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.files import atomic_folder, format_path, read_compressed
from fedagentgym.leaderboard.aggregate import CellData
from fedagentgym.leaderboard.cells import Cell
from fedagentgym.leaderboard.entries import describe_plugins
from fedagentgym.leaderboard.results import (
    CONFIGS,
    EPISODES,
    MANIFEST,
    SELECTION,
    WORLDS,
    PackedCell,
    Result,
    ResultFolder,
    write_result,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_place(cell: Cell, store: Path) -> Path:
    """The folder of a cell in a store."""
    return store / cell.suite.name / cell.entry.name / cell.key


def store_cell(cell: Cell, result: Result, store: Path) -> None:
    """Write a result of a single cell into a store, unless it is there."""
    place = find_place(cell, store)
    if not (place / MANIFEST).is_file():
        write_result(result, place)


def restore_cells(cells: Sequence[Cell], store: Path) -> list[Cell]:
    """Copy the stored ones of these cells to where they are played; returns them."""
    found = [cell for cell in cells if (find_place(cell, store) / MANIFEST).is_file()]
    for cell in found:
        place = find_place(cell, store)
        check_cell(cell, place)
        with atomic_folder(cell.packed_folder) as folder:
            shutil.copytree(place, folder, dirs_exist_ok=True)
    return found


def check_cell(cell: Cell, place: Path) -> None:
    """Refuse a stored cell of another definition of the suite or of the entry."""
    result, entry = ResultFolder(place), cell.entry
    manifest = result.manifest
    method = manifest.entry.method
    same = manifest.suite.digest == cell.suite.digest and [one.key for one in manifest.cells] == [cell.key]
    same = same and method is not None and method.changes == entry.changes
    same = same and method is not None and method.plugins == describe_plugins(entry.plugins)
    if not same or manifest.cells[0].config != cell.identity["config"]:
        raise OptionError(
            f"{format_path(place)} was played under another definition of {cell.suite.name} or of the entry {entry.name!r}:"
            " move it, or name another folder for the cells"
        )
    if [(one.scenario, one.seed) for one in result.configs.cells] != [(cell.scenario, cell.seed)]:
        raise DataError(f"{format_path(place / CONFIGS)} does not hold the configuration of {cell.key} alone")


def read_packed_cell(cell: Cell) -> tuple[PackedCell, float]:
    """A restored cell, and how long it took."""
    folder = ResultFolder(cell.packed_folder)
    (record,) = folder.manifest.cells
    found = folder.read_cell(record)
    data = CellData(
        record.scenario,
        record.seed,
        folder.read_groups(record),
        record.spent,
        found.points,
        found.clients,
        policy=record.policy,
        config=record.config,
        epsilon=record.epsilon,
        revision=record.revision,
        worlds=found.worlds,
    )
    episodes, selection = (read_compressed(folder.get_episodes_file(record, kind)) for kind in (EPISODES, SELECTION))
    (configured,) = folder.configs.cells
    worlds = read_compressed(folder.get_episodes_file(record, WORLDS)) if cell.suite.in_own_worlds else ""
    return PackedCell(data, episodes, selection, configured.config, worlds), folder.manifest.made.seconds
