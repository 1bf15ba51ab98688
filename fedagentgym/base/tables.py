"""Rows of numbers as tables for further computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedagentgym.base.files import write_atomic
from fedagentgym.base.imports import require


def make_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The rows as a DataFrame if pandas is installed, else as a list of dictionaries."""
    try:
        import pandas
    except ImportError:
        return [dict(row) for row in rows]
    return pandas.DataFrame.from_records([dict(row) for row in rows])


def write_rows(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write the rows as a parquet file (extra `[data]`)."""
    arrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist([dict(row) for row in rows]), sink)
    write_atomic(file, sink.getvalue().to_pybytes())
