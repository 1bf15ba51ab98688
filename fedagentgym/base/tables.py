"""Rows of numbers for people who compute on with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def make_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The rows as a DataFrame if pandas is installed, else as a list of dictionaries."""
    try:
        import pandas
    except ImportError:
        return [dict(row) for row in rows]
    return pandas.DataFrame.from_records([dict(row) for row in rows])
