"""A few lines of the leaderboard in README: `python -m fedagentgym.leaderboard.excerpt README.md build/leaderboard`.

They stand between two markers, and are made from the tables that the page has as CSV; nothing of them is typed.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import write_atomic
from fedagentgym.pages.render import escape_markdown

BEGIN, END = "<!-- leaderboard: begin -->", "<!-- leaderboard: end -->"
MOST = 4
"""Entries of a suite that are shown."""


def write_excerpt(site: Path) -> str:
    """The best entries of every suite over all scenarios, best first; entries without a place are left out."""
    rows = [row for table in sorted(site.glob("*.csv")) for row in _read_entries(table)]
    lines = [
        f"| `{row['suite']}` | {row['band']} | {escape_markdown(row['title'])} | {_format(row)}"
        f" | {escape_markdown(row['status'])} |"
        for row in rows
    ]
    return "\n".join(
        ["| suite | band | entry | success [95 %] or (each run) | status |", "|---|---|---|---|---|", *lines]
    )


def fill_page(text: str, excerpt: str) -> str:
    """The page with this excerpt between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"the page has no place for an excerpt between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{excerpt}\n\n{END}{after}"


def _read_entries(table: Path) -> Iterator[Mapping[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["scenario"], row["measure"]) == ("overall", "success")]
    yield from [row for row in rows if row["band"]][:MOST]


def _format(row: Mapping[str, str]) -> str:
    mean, *ends = _to_percent([row["mean"], row["low"], row["high"]])
    if ends:
        return f"{mean} % [{', '.join(ends)}]"
    runs = _to_percent(row["runs"].split())
    return f"{mean} % ({', '.join(runs)})" if len(runs) > 1 else f"{mean} %"


def _to_percent(values: Sequence[str]) -> list[str]:
    return [f"{100 * float(value):.1f}" for value in values if value]


if __name__ == "__main__":
    page, site = map(Path, sys.argv[1:])
    write_atomic(page, fill_page(page.read_text("utf-8"), write_excerpt(site)))
