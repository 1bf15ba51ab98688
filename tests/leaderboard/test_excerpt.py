"""The leaderboard's lines in README are those of its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.base.rounding import format_fixed
from fedagentgym.leaderboard.results import ResultFolder
from fedagentgym.leaderboard.site.tables import BEGIN, END, fill_page, write_excerpt

ROOT = Path(__file__).resolve().parents[2]


def test_the_numbers_in_readme_are_those_of_the_committed_results() -> None:
    """Without building the page, which test_committed.py does."""
    _, _, rest = (ROOT / "README.md").read_text("utf-8").partition(BEGIN)
    shown = [tuple(cell.strip() for cell in line.split("|")[1:5]) for line in rest.partition(END)[0].splitlines()[4:-1]]
    assert len(shown) > 10
    for suite, _, title, success in shown:
        folders = (ROOT / "leaderboard" / "results" / suite.strip("`")).iterdir()
        (found,) = [made for made in (ResultFolder(folder).manifest for folder in folders) if made.entry.title == title]
        assert success.startswith(f"{format_fixed(100 * found.overall['success'].mean, 1)} %"), title


def test_the_best_entries_by_success_over_all_scenarios(tmp_path: Path) -> None:
    head = "suite,version,entry,title,band,rank,status,scenario,measure,mean,low,high,runs\n"
    rows = [
        f"s-v1,1,e{rank},entry {rank},1,{rank},verified,overall,success,0.{9 - rank},0,1,\n" for rank in (1, 2, 3, 4, 5)
    ]
    rows[1] = "s-v1,1,e2,entry 2,1,,verified,overall,success,0.7,,,0.6 0.8\n"
    rows.append("s-v1,1,e1,entry 1,1,1,verified,houses,success,0,0,0,\n")
    (tmp_path / "s-v9.csv").write_text(head + rows[0])
    (tmp_path / "s-v10.csv").write_text(head + "".join(rows))
    (tmp_path / "mine.csv").write_text(head + rows[4])
    first, *lines = write_excerpt(tmp_path).splitlines()[2:]
    assert "entry 5" in first
    assert [line.split(" | ")[2] for line in lines] == ["entry 1", "entry 2", "entry 3"]
    assert lines[:2] == [
        "| `s-v1` | 1 | entry 1 | 80.0 % [0.0, 100.0] | verified |",
        "| `s-v1` | 1 | entry 2 | 70.0 % (60.0, 80.0) | verified |",
    ]


def test_a_page_without_a_place_is_refused() -> None:
    assert fill_page(f"a {BEGIN} old {END} b", "new") == f"a {BEGIN}\n\nnew\n\n{END} b"
    with pytest.raises(DataError, match="no place"):
        fill_page(BEGIN, "new")
