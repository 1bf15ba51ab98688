"""A table of findings: printed like any benchmark's figures, and written into a page of the documentation between its markers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.excerpts import fill_place
from benchmarks.measurement import Measurement
from fedagentgym.base.files import write_atomic

Cell = float | str


@dataclass(frozen=True)
class Findings:
    """Rows by name. `columns` maps the header of each further column to the format of its numbers; columns of texts have none."""

    row: str
    columns: Mapping[str, str]
    rows: Mapping[str, tuple[Cell, ...]]

    def to_markdown(self) -> str:
        """The table of a page."""
        lines = [f"| {' | '.join([self.row, *self.columns])} |", "|---" * (1 + len(self.columns)) + "|"]
        for name, cells in self.rows.items():
            shown = (
                cell if isinstance(cell, str) else format(cell, style)
                for cell, style in zip(cells, self.columns.values(), strict=True)
            )
            lines.append(f"| {name} | {' | '.join(shown)} |")
        return "\n".join(lines)

    def to_measurements(self) -> list[Measurement]:
        """Every number of the table as a figure."""
        return [
            Measurement(f"{name}: {column}", float(cell), "")
            for name, cells in self.rows.items()
            for column, cell in zip(self.columns, cells, strict=True)
            if not isinstance(cell, str)
        ]


def write_tables(page: Path, name: str, tables: Mapping[str, Findings]) -> None:
    """Write tables with their titles between the markers of a name on a page."""
    parts = [f"{title[0].upper()}{title[1:]}:\n\n{table.to_markdown()}\n" for title, table in tables.items()]
    write_place(page, name, "\n".join(parts))


def list_measurements(tables: Mapping[str, Findings]) -> list[Measurement]:
    """Every number of the tables, under the title of its table."""
    return [
        Measurement(f"{title}, {one.name}", one.value, one.unit)
        for title, table in tables.items()
        for one in table.to_measurements()
    ]


def write_place(page: Path, name: str, content: str) -> None:
    """Write content between the markers of a name on a page."""
    write_atomic(page, fill_place(page.read_text("utf-8"), name, content))
