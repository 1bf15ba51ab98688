"""From finished runs to a page: what is collected, kept, compared and drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.curves import Point, compute_area
from benchmarks.excerpts import make_marks
from benchmarks.kept_results import collect_results, load_results, save_results
from benchmarks.skills_pages import PAGES, SuitePage, average_weight, average_weight_of_styles
from benchmarks.skills_results import (
    FIGURES,
    TableResults,
    average_metric,
    compare_pairs,
    describe_suite,
    read_suite,
    write_page,
)
from benchmarks.tables import ExperimentTable, TableCell
from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.federation.records import COLUMNS, DIRECTIONS, read_metrics_log
from fedagentgym.leaderboard.results import Result
from fedagentgym.runs.folder import METRICS, format_document
from fedagentgym.runs.record import RunRecord
from tests.committed import RESULTS, find_suite, needs_all_results

TABLE = ExperimentTable("skills-small", {"before": "x", "FedAgent, tau = 5": "y", "FedAgent, tau = 40": "z"}, seeds=3)
PAIRS = [("FedAgent, tau = 5", "before"), ("FedAgent, tau = 40", "FedAgent, tau = 5")]
SUCCESS = "held-out success"
TOWNS = {"Arle": ("+", False), "Bost": ("-", True)}


def estimate(success: float) -> dict[str, dict[str, float]]:
    """The estimates of an evaluation with this success."""
    return {name: dict.fromkeys(("mean", "low", "high"), success) for name in ("success", "score", "turns")}


def write_run(folder: Path, seed: int, course: list[float]) -> None:
    """Write the files of a run whose policy reaches these successes, 100 episodes and 1 MB later each."""
    folder.mkdir(parents=True)
    lines = []
    for number, success in enumerate(course):
        sent = {way: dict.fromkeys(COLUMNS, 0) | {"weights": 500_000 * number} for way in DIRECTIONS}
        metrics = {"episodes": 100.0} if number else {}
        lines.append({"round": number, "metrics": metrics, "bytes_total": sent, "evaluation": {"success": success}})
    (folder / "metrics.jsonl").write_text("".join(canonical_json(line) + "\n" for line in lines))

    def judge(number: int, success: float) -> dict[str, Any]:
        towns = {town: success + (0.1 if misled else -0.1) for town, (_, misled) in TOWNS.items()}
        return {"round": number, "overall": estimate(success), "categories": towns}

    last = judge(len(course) - 1, course[-1])
    sent = 500_000 * (len(course) - 1)
    spent = {"env_steps": 100 * (len(course) - 1), "bytes_down": sent, "bytes_up": sent}
    towns = {town: {"own": own, "misled": misled} for town, (own, misled) in TOWNS.items()}
    zeros = "sha256:" + 64 * "0"
    record = {
        "kind": "training",
        "name": "skills",
        "seed": seed,
        "config_digest": zeros,
        "env": {"id": "fedagentgym/Skills-v0", "options": {}, "pool": zeros, "task_set": zeros},
        "agent": {"kind": "model", "settings": {}, "note": {"misconceptions": towns}},
        "curve": [{**judge(0, course[0]), "spent": {}}, {**last, "spent": spent}],
        "final": {
            **last,
            "tasks": 1,
            "episodes": 1,
            "categories": {town: estimate(mean) for town, mean in last["categories"].items()},
        },
        "spent": spent,
        "made": {"date": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "versions": {}, "machine": {}},
    }
    (folder / "result.json").write_text(format_document(RunRecord.load(record)))
    (folder / "config.yaml").write_text("env: {}\n")


@pytest.fixture
def cells(tmp_path: Path) -> list[TableCell]:
    courses = {"before": [0.5], "FedAgent, tau = 5": [0.5, 0.7, 0.9], "FedAgent, tau = 40": [0.5, 0.6]}
    cells = []
    for row, course in courses.items():
        for seed in range(3):
            cell = TableCell(row, row, (), tmp_path / f"{row}-{seed}")
            if (row, seed) != ("FedAgent, tau = 40", 2):
                write_run(cell.folder, seed, [success + 0.01 * seed * len(course) for success in course])
            cells.append(cell)
    return cells


def test_what_is_finished_is_collected_and_kept(cells: list[TableCell], tmp_path: Path) -> None:
    results = collect_results(TABLE, cells)
    assert results is not None
    often, seldom = results.get("FedAgent, tau = 5"), results.get("FedAgent, tau = 40")
    assert often.seeds == (0, 1, 2) and seldom.seeds == (0, 1)
    assert often.row.values[SUCCESS] == pytest.approx((0.9, 0.93, 0.96))
    assert often.skills["Bost"].misled and often.skills["Bost"].after == pytest.approx(1.03)
    save_results(results, tmp_path / "results.json")
    assert load_results(tmp_path / "results.json") == results
    assert collect_results(TABLE, cells[-1:]) is None
    (tmp_path / "results.json").write_text('{"table": 1}')
    with pytest.raises(DataError, match="not the results"):
        load_results(tmp_path / "results.json")


def test_what_the_runs_recorded_stands_below_the_beliefs(cells: list[TableCell]) -> None:
    """Of the rows that have it; a row without it has an empty field, not zero."""
    columns = {
        "episodes": average_metric("episodes", total=True),
        "of a round": average_metric("episodes"),
        "never": average_metric("no such metric"),
    }
    results = collect_results(TABLE, cells)
    assert results is not None
    rows = []
    for one in results.rows:
        folders = [cell.folder for cell in cells if cell.row == one.row.name][: len(one.seeds)]
        rounds = [list(read_metrics_log(folder / METRICS)) for folder in folders]
        read = {name: tuple(map(compute, rounds)) for name, compute in columns.items()}
        rows.append(replace(one, diagnostics=read))
    assert all(math.isnan(value) for value in rows[0].diagnostics["episodes"])
    told = describe_suite(replace(results, rows=tuple(rows)))
    assert "| before | 0.610 | 0.610 | 0.410 | 0.410 |" in told
    _, _, shown = told.partition("From the records of the runs")
    assert "| FedAgent, tau = 5 | 200 | 100 |  |" in shown
    assert "| FedAgent, tau = 40 | 100 | 100 |  |" in shown
    assert "before" not in shown


def test_pairs_are_compared_over_the_seeds_that_all_have(cells: list[TableCell]) -> None:
    results = collect_results(TABLE, cells)
    assert results is not None
    gained, lost = compare_pairs(results, PAIRS, SUCCESS)
    assert gained.values == pytest.approx((0.4, 0.42)) and lost.values == pytest.approx((-0.3, -0.31))
    alone = replace(results, rows=results.rows[:2])
    assert [len(one.values) for one in compare_pairs(alone, PAIRS, SUCCESS)] == [3]
    assert compare_pairs(replace(results, rows=results.rows[:1]), PAIRS, SUCCESS) == []


def test_figures_stand_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = make_marks(FIGURES)
    page.write_text(f"# Page\n\n{begin}\nold\n{end}\n\nWords.\n")
    write_page(page, "| new |\n")
    assert page.read_text() == f"# Page\n\n{begin}\n\n| new |\n\n{end}\n\nWords.\n"
    page.write_text("# Page\n")
    with pytest.raises(DataError, match="no place between"):
        write_page(page, "| new |\n")


def test_pictures_are_drawn_and_the_same_each_time(cells: list[TableCell], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.skills_figures import compute_band, draw_results

    results = collect_results(TABLE, cells)
    assert results is not None
    files = draw_results(results, tmp_path, "small")
    assert sorted(files.values()) == [f"small-{what}.png" for what in ("bytes", "curves", "skills", "tau")]
    before = {file: (tmp_path / file).read_bytes() for file in files.values()}
    assert all(drawn.startswith(b"\x89PNG") and len(drawn) > 5000 for drawn in before.values())
    draw_results(results, tmp_path, "small")
    assert {file: (tmp_path / file).read_bytes() for file in before} == before
    episodes, success, width = compute_band(results.get("FedAgent, tau = 5"))
    assert episodes.tolist() == [0, 100, 200] and success == pytest.approx([0.53, 0.73, 0.93])
    assert width.tolist() == [0, 0, 0], "three seeds have no interval"
    alone: TableResults = replace(results, rows=results.rows[:2])
    assert "Success against tau" not in draw_results(alone, tmp_path, "alone")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@needs_all_results
def test_pages_hold_the_figures_of_the_committed_results(page: SuitePage, root: Path) -> None:
    text = (root / "docs" / "experiments" / f"{page.name}.md").read_text()
    results, (begin, end) = page.read(), make_marks(FIGURES)
    figures = text.partition(begin)[2].partition(end)[0]
    assert results is not None and figures.split("![")[0].strip() == describe_suite(results).strip()
    assert "\n3. " in text.partition("<!-- hypotheses: begin -->")[2].partition("<!-- hypotheses: end -->")[0]


def test_a_weight_at_the_end_is_the_mean_over_clients() -> None:
    clients = {
        "0": {"weight/format": 0.2, "weight/style/bare": 0.4},
        "1": {"weight/format": 0.4, "weight/style/unit": 0.2},
    }
    rounds = [{"round": 0, "metrics": {}}, {"round": 1, "metrics": {}, "clients": clients}]
    assert average_weight("format")(rounds) == average_weight_of_styles(rounds) == pytest.approx(0.3)
    assert average_weight("format")(rounds[:1]) == average_weight_of_styles(rounds[:1]) == 0.25


def test_a_suites_results_are_a_table_of_each_scenario() -> None:
    place = find_suite("methods-tiny-skills-v2")
    found = read_suite(place.name, RESULTS)
    assert found is not None and read_suite("smoke", RESULTS) is None
    result = Result(place / "fedavg-grpo.zip")
    for scenario, name in (("uniform", "FedAvg-GRPO"), ("by-town", "by-town: FedAvg-GRPO")):
        row = found.get(name)
        assert list(row.row.values["success"]) == result.numbers.list_runs("success", scenario)
        assert [curve[-1].success for curve in row.curves] == list(row.row.values["success"])
        assert row.seeds == tuple(range(12)) and row.row.env_steps == 10240 and len(row.curves[0]) == 5
    assert not describe_suite(found).strip()  # its records name no misconceptions, and it has no diagnostics


def test_the_area_is_the_mean_over_episodes() -> None:
    curve = [Point(0, 0, 0, 0.2), Point(1, 100, 1, 0.4), Point(3, 400, 3, 0.8)]
    assert compute_area(curve) == pytest.approx((100 * 0.3 + 300 * 0.6) / 400)
    assert compute_area(curve[:1]) == 0.2
