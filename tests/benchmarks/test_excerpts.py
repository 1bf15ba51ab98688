"""The leaderboard's lines in README are those of its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.excerpts import BEST, fill_page, fill_place, make_marks, write_best
from fedagentgym.base.errors import DataError
from fedagentgym.base.rounding import format_fixed
from fedagentgym.leaderboard.results import Result

ROOT = Path(__file__).resolve().parents[2]


def test_the_numbers_in_readme_are_those_of_the_committed_results() -> None:
    """Without building the page, which test_committed.py does."""
    begin, end = make_marks(BEST)
    _, _, rest = (ROOT / "README.md").read_text("utf-8").partition(begin)
    shown = [tuple(cell.strip() for cell in line.split("|")[1:6]) for line in rest.partition(end)[0].splitlines()[4:-1]]
    assert len(shown) > 10
    for suite, _, title, success, steps in shown:
        archives = (ROOT / "leaderboard" / "results" / suite.split("`")[1]).glob("*.zip")
        (found,) = [made for made in map(Result, archives) if made.entry.title == title]
        assert success.startswith(f"{format_fixed(100 * found.numbers.overall[found.suite.rank_by].mean, 1)} %"), title
        taken = found.numbers.overall.get("optimizer_steps")
        assert steps == ("" if taken is None else f"{taken.mean:,.4g}"), title


def test_the_best_entries_by_success_over_all_scenarios(tmp_path: Path) -> None:
    head = "suite,version,entry,title,band,rank,status,scenario,measure,ranked,mean,low,high,runs\n"
    rows = [
        f"s-v1,1,e{rank},entry {rank},1,{rank},verified,overall,success,yes,0.{9 - rank},0,1,\n"
        for rank in (1, 2, 3, 4, 5)
    ]
    rows[1] = "s-v1,1,e2,entry 2,1,,verified,overall,success,yes,0.7,,,0.6 0.8\n"
    rows.append("s-v1,1,e1,entry 1,1,1,verified,houses,success,yes,0,0,0,\n")
    rows.append("s-v1,1,e2,entry 2,1,,verified,overall,optimizer_steps,,1234.5,,,1234 1235\n")
    (tmp_path / "s-v9.csv").write_text(head + rows[0])
    (tmp_path / "s-v10.csv").write_text(head + "".join(rows))
    (tmp_path / "mine.csv").write_text(head + rows[4])
    first, *lines = write_best(tmp_path).splitlines()[2:]
    assert "entry 5" in first
    assert [line.split(" | ")[2] for line in lines] == ["entry 1", "entry 2", "entry 3"]
    assert lines[:2] == [
        "| `s-v1` | 1 | entry 1 | 80.0 % [0.0, 100.0] |  | verified |",
        "| `s-v1` | 1 | entry 2 | 70.0 % (60.0, 80.0) | 1,234 | verified |",
    ]


def test_a_page_shows_what_a_suite_found_in_each_scenario(tmp_path: Path) -> None:
    (tmp_path / "s-v1.md").write_text("# Suite\n\n| all |\n\n## By scenario\n\nSuccess:\n")
    begin, end = make_marks("s-v1")
    page = f"a\n{begin}\nold\n{end}\n<!-- unknown: begin -->\nkept\n<!-- unknown: end -->\n"
    assert fill_page(page, tmp_path) == page.replace("\nold\n", "\n\nSuccess:\n\n")


def test_a_page_without_a_place_is_refused() -> None:
    begin, end = make_marks("x")
    assert fill_place(f"a {begin} old {end} b", "x", "new") == f"a {begin}\n\nnew\n\n{end} b"
    for page in (begin, f"{end} {begin}", f"{begin} {begin} {end}", ""):
        with pytest.raises(DataError, match="no place"):
            fill_place(page, "x", "new")
