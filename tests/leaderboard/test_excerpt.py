"""The leaderboard's lines in README are those of its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.leaderboard.excerpt import BEGIN, END, fill_page, write_excerpt

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "run: python -m fedagentgym.leaderboard.excerpt README.md leaderboard/site"


def test_readme_shows_what_the_page_has() -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    assert page == fill_page(page, write_excerpt(ROOT / "leaderboard" / "site")), COMMAND


def test_the_best_entries_by_success_over_all_scenarios(tmp_path: Path) -> None:
    head = "suite,version,entry,title,band,rank,status,scenario,measure,mean,low,high\n"
    rows = [
        f"s-v1,1,e{rank},entry {rank},1,{rank},verified,overall,success,0.{9 - rank},0,1\n" for rank in (3, 1, 5, 2, 4)
    ]
    rows.append("s-v1,1,e1,entry 1,1,1,verified,houses,success,0,0,0\n")
    (tmp_path / "s-v1.csv").write_text(head + "".join(rows))
    lines = write_excerpt(tmp_path).splitlines()[2:]
    assert [line.split(" | ")[2] for line in lines] == ["entry 1", "entry 2", "entry 3", "entry 4"]
    assert lines[0] == "| `s-v1` | 1 | entry 1 | 80.0 % [0.0, 100.0] | verified |"


def test_a_page_without_a_place_is_refused() -> None:
    assert fill_page(f"a {BEGIN} old {END} b", "new") == f"a {BEGIN}\n\nnew\n\n{END} b"
    with pytest.raises(DataError, match="no place"):
        fill_page(BEGIN, "new")
