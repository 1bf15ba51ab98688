"""The leaderboard's lines in README are those of its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.excerpts import OVERVIEWS, fill_page, fill_place, make_marks
from fedagentgym.base.errors import DataError
from fedagentgym.base.rounding import format_fixed, subtract_shown
from fedagentgym.leaderboard.page.tables import METHOD_HEADS
from fedagentgym.leaderboard.results import Result
from tests.committed import RESULTS, needs_all_results

ROOT = Path(__file__).resolve().parents[2]


def read_algorithm(result: Result) -> str | None:
    """The method of an entry, by its first run: reading all of them takes a second."""
    (record,) = Result(result.path, only=result.keys[0]).records.values()
    return record.algorithm


def read_rows() -> list[list[str]]:
    """The cells of README's table of methods, row by row."""
    begin, end = make_marks(OVERVIEWS[0])
    _, _, rest = (ROOT / "README.md").read_text("utf-8").partition(begin)
    lines = rest.partition(end)[0].splitlines()
    return [[cell.strip() for cell in line.split(" | ")] for line in lines if line.startswith("| `")]


def test_readme_has_a_row_for_each_suite_of_methods() -> None:
    rows = read_rows()
    assert len(rows) >= 7 and {len(row) for row in rows} == {len(METHOD_HEADS)}
    assert len({row[0] for row in rows}) == len(rows)


@pytest.mark.parametrize("row", read_rows(), ids=lambda row: row[0].split("`")[1])
@needs_all_results
def test_the_numbers_in_readme_are_those_of_the_committed_results(row: list[str]) -> None:
    """Without building the page, which test_committed.py does."""
    suite, federated, *baselines, gap = row
    found = {
        one.entry.title: one for one in map(Result, sorted((RESULTS / suite.split("`")[1].split()[0]).glob("*.zip")))
    }
    title, _, value = federated.rpartition(": ")
    rank_by = found[title].suite.rank_by
    best = found[title].numbers.overall[rank_by].mean
    shown = format_fixed(best, 3) if rank_by == "own_rewards" else f"{format_fixed(100 * best, 1)} %"
    assert value.startswith(shown)
    central = [one for one in found.values() if read_algorithm(one) == "centralized"]
    means = [one.numbers.overall[one.suite.rank_by].mean for one in central]
    assert bool(baselines[2]) == bool(central)
    if central:
        gaps = {format_fixed(subtract_shown(100 * best, 100 * one, 1), 1, "+") for one in means}
        assert gap.partition(",")[0].rstrip(" |") in gaps


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
