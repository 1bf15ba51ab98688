"""Parts of the leaderboard's page that are copied between markers of README and of the documentation.

    python -m benchmarks.excerpts build/leaderboard README.md docs/experiments/suites.md

`<!-- methods: begin -->`   the best method of every suite beside its baselines
`<!-- agents: begin -->`    the agents that were evaluated, and those that can be
`<!-- SUITE: begin -->`     what a suite shows in each scenario, with its differences
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedagentgym.base.errors import DataError
from fedagentgym.base.files import write_atomic
from fedagentgym.leaderboard.page.tables import FINDINGS

OVERVIEWS = ("methods", "agents")
"""The tables of `overview.md`, in this order."""


def fill_page(text: str, site: Path) -> str:
    """The page with the site's tables between the markers of their names."""
    for name in re.findall(r"^<!-- ([\w-]+): begin -->$", text, re.MULTILINE):
        if name in OVERVIEWS:
            tables = (site / "overview.md").read_text("utf-8").strip().split("\n\n")
            text = fill_place(text, name, tables[OVERVIEWS.index(name)])
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


if __name__ == "__main__":
    site, *pages = map(Path, sys.argv[1:])
    for page in pages:
        write_atomic(page, fill_page(page.read_text("utf-8"), site))
