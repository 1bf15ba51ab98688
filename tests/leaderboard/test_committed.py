"""The results in the repository are verified, and the table of README is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.excerpts import fill_page
from fedagentgym.base.statistics import CONFIDENCE
from fedagentgym.cli.main import main
from fedagentgym.leaderboard.entries import make_agent_entry
from fedagentgym.leaderboard.page.tables import READY, list_overview
from fedagentgym.leaderboard.play import choose_settings
from fedagentgym.leaderboard.results import Result, name_run, read_suites
from fedagentgym.leaderboard.suite import load_suite, open_scenario
from fedagentgym.leaderboard.verify import verify
from fedagentgym.learning.recipe import load_recipe
from fedagentgym.learning.trajectory import group_by_task, read_lines
from fedagentgym.runs.claims import compare, measure_groups
from fedagentgym.runs.folder import RANKED
from tests.committed import RESULTS, VERIFIED, needs_all_results
from tests.leaderboard.recount import recount

ARCHIVES = sorted(RESULTS.glob("*/*.zip"))


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_committed_result_is_verified(archive: Path) -> None:
    found, written = verify(archive), Result(archive, [VERIFIED]).verification
    assert found.replayed and written is not None and written.claims == found.claims


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_numbers_of_a_committed_run_follow_from_its_episodes(archive: Path) -> None:
    """A change of the statistics under which committed results would be refuted is found without a replay."""
    result = Result(archive)
    with result.open_run(result.keys[0]) as run:
        written = run.record.ranked
        assert written is not None
        groups = group_by_task(line.trajectory for line in read_lines(run.path / RANKED))
        found = measure_groups(groups, written.round, written.policy, CONFIDENCE)
    for part in ("overall", "categories"):
        compare(part, getattr(found, part), getattr(written, part))


@needs_all_results
def test_whatever_is_said_to_be_verified_is_about_a_result() -> None:
    written = {Result(archive, [VERIFIED]).list_findings()[0] for archive in ARCHIVES}
    assert written == set(VERIFIED.rglob("*.json"))


def test_what_is_verified_is_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file.zip").write_text("no archive")
    suite = RESULTS / "agents-tiny-v1"
    for place, told in (
        (suite, f"results: name each result, such as {suite}"),
        (tmp_path / "gone", "neither a result nor a folder of results"),
        (tmp_path / "file.zip", "file.zip"),
        (tmp_path, "file.zip"),
    ):
        assert main(["bench", "verify", str(place)]) == 2
        said = capsys.readouterr().err
        assert told in said and said.count("\n") == 1
    (tmp_path / "file.zip").unlink()
    assert main(["bench", "verify", str(tmp_path)]) == 2
    assert "is no result, and holds 0 results" in capsys.readouterr().err


@pytest.mark.by_day(8)
@pytest.mark.parametrize(
    "archive", [path for path in ARCHIVES if "methods" in path.parent.name], ids=lambda path: path.stem
)
def test_areas_and_targets_are_counted_again_by_a_script(archive: Path) -> None:
    result = Result(archive)
    suite = result.suite
    found = recount(archive, suite.budget.episodes or 0, suite.target or 2.0)
    for scenario, runs in result.numbers.runs.items():
        for seed, numbers in runs.items():
            told = {
                name: numbers.means[name]
                for name in ("area", "rounds_to_target", "bytes_to_target")
                if name in numbers.means
            }
            assert found[f"{scenario}-seed{seed}"] == pytest.approx(told)


def test_the_configuration_that_is_shown_of_a_run_is_the_one_that_was_played(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = Result(RESULTS / "methods-small-skills-v1" / "local-0.zip")
    key = result.keys[2]
    run = name_run(key)
    assert main(["bench", "config", "methods-small-skills-v1", "local-0", run]) == 0
    with result.open_run(key) as played:
        assert yaml.safe_load(capsys.readouterr().out) == played.config
    for wrong in (["local-1", run], ["local-0", "by-town-seed99"]):
        assert main(["bench", "config", "methods-small-skills-v1", *wrong]) == 2
    assert main(["bench", "config", "agents-tiny-v1", "expert", "shop-seed0"]) == 2


def test_models_that_were_not_played_cost_what_the_plan_says(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = read_suites([RESULTS / "agents-tiny-v1"])
    _, rows = list_overview([(found, {})])
    ready = {model: (commands, spent) for _, model, reached, commands, spent in rows if reached == "not run"}
    assert set(ready) == set(READY) and all(not row[4] for row in rows if row[1] not in ready)
    for model in (READY[0], READY[-1]):
        commands, spent = ready[model]
        assert commands == f"fedagentgym model add {model} && fedagentgym bench run agents-tiny-v1 --agent {model}"
        assert main(["bench", "plan", "agents-tiny-v1", "--agent", model, "--gpu", "h100", "--price", "2.5"]) == 0
        told = capsys.readouterr().out.splitlines()[-1]
        minutes, price = spent.partition("; ")[2].split(", ")
        assert minutes in told and f"price: {price} " in told


@needs_all_results
@pytest.mark.slow
def test_readme_and_docs_show_what_the_page_of_the_results_has(root: Path, tmp_path: Path) -> None:
    line = ["leaderboard", "build", str(RESULTS), "--verified", str(VERIFIED), "--link", "x"]
    assert main([*line, "--out", str(tmp_path)]) == 0
    played = {archive.parent.name for archive in ARCHIVES}  # a suite adds less than a megabyte
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 1e6 * len(played)
    for page in (root / "README.md", *(root / "docs" / "experiments").glob("*.md")):
        text = page.read_text("utf-8")
        assert text == fill_page(text, tmp_path), f"{page.name}: run make leaderboard"


def test_a_tiny_agent_follows_the_recipe_where_the_package_has_none() -> None:
    suite, entry = load_suite("agents-tiny-v1"), make_agent_entry({"name": "tiny"})
    houses, shop = (choose_settings(open_scenario(suite, name), entry) for name in ("houses", "shop"))
    recipe = load_recipe("tiny-webshop").agent
    assert houses.context is None and shop.context == recipe.context == "window"
    assert shop.decoding is not None and recipe.decoding is not None
    assert shop.decoding.max_new_tokens == recipe.decoding.max_new_tokens == 64
