"""A table of what a warm start demonstrated for each category and what the agent does after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

COLUMNS = ("category", "shown right", "misled", "own procedure", "another", "episodes")


def make_belief_table(shown: Mapping[str, Mapping[str, Any]], beliefs: Mapping[str, Mapping[str, Any]]) -> Table:
    """One line per category; beliefs are the shares of new episodes that followed its own procedure and another one."""
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "category" else "right")
    for category, about in shown.items():
        found = beliefs.get(category)
        measured = ("", "", "0") if found is None else _format_belief(found)
        table.add_row(category, f"{about['right']:.2f}", "yes" if about["misled"] else "no", *measured)
    return table


def _format_belief(belief: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{belief['own']:.3f}", f"{belief['other']:.3f}", str(belief["episodes"])
