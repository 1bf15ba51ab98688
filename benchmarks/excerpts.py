"""Parts of the leaderboard's page in README and the documentation: they stand between markers, and nothing of them is typed.

    python -m benchmarks.excerpts build/leaderboard README.md docs/experiments/suites.md

`<!-- leaderboard: begin -->`    the best entries of every suite
`<!-- SUITE: begin -->`          what a suite shows in each scenario, with its differences
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

from fedagentgym.base.errors import DataError
from fedagentgym.base.escape import escape_markdown
from fedagentgym.base.files import write_atomic
from fedagentgym.leaderboard.metrics import Interval, find_metric, format_spread, format_value
from fedagentgym.leaderboard.page.tables import FINDINGS, STEPS

BEST = "leaderboard"
MOST = 3
"""Entries of a suite among the best."""


def fill_page(text: str, site: Path) -> str:
    """The page with what the site has between each two of its markers."""
    for name in re.findall(r"^<!-- ([\w-]+): begin -->$", text, re.MULTILINE):
        if name == BEST:
            text = fill_place(text, name, write_best(site))
        elif (table := site / f"{name}.md").is_file():
            text = fill_place(text, name, table.read_text("utf-8").partition(f"{FINDINGS}\n")[2])
    return text


def fill_place(text: str, name: str, content: str) -> str:
    """The text with this content between the markers of a name."""
    marks = begin, end = make_marks(name)
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if any(text.count(mark) != 1 for mark in marks) or end not in rest:
        raise DataError(f"the page has no place between {begin} and {end}")
    return f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}"


def make_marks(name: str) -> tuple[str, str]:
    """The markers before and after a place."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def write_best(site: Path) -> str:
    """The best entries of every suite's newest version over all scenarios, best first; entries without a place are left out."""
    newest: dict[str, tuple[int, Path]] = {}
    for table in sorted(site.glob("*.csv")):
        name, _, version = table.stem.rpartition("-v")
        key, number = (name, int(version)) if version.isdecimal() else (table.stem, 0)
        newest[key] = max(newest.get(key, (number, table)), (number, table))
    heads = ["suite", "band", "entry", "success [95 %] or (each run)", find_metric(STEPS).title, "status"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for _, (_, table) in sorted(newest.items()):
        with table.open(encoding="utf-8", newline="") as file:
            overall = [row for row in csv.DictReader(file) if row["scenario"] == "overall" and row["band"]]
        rows = [row for row in overall if row["ranked"]]
        steps = {row["entry"]: float(row["mean"]) for row in overall if row["measure"] == STEPS}
        for row in rows[:MOST]:
            title, status, metric = (
                escape_markdown(row["title"]),
                escape_markdown(row["status"]),
                find_metric(row["measure"]),
            )
            where = "" if metric.name == "success" else f" ({metric.title})"
            low, high = (float(row[end]) if row[end] else None for end in ("low", "high"))
            found = Interval(mean=float(row["mean"]), low=low, high=high)
            success = format_spread(found, [float(run) for run in row["runs"].split()], metric)
            taken = format_value(steps[row["entry"]], find_metric(STEPS)) if row["entry"] in steps else ""
            lines.append(f"| `{row['suite']}`{where} | {row['band']} | {title} | {success} | {taken} | {status} |")
    return "\n".join(lines)


if __name__ == "__main__":
    site, *pages = map(Path, sys.argv[1:])
    for page in pages:
        write_atomic(page, fill_page(page.read_text("utf-8"), site))
