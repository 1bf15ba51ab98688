"""The results in the repository are verified, and the table of README is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedagentgym.cli.main import main
from fedagentgym.leaderboard.results import ResultFolder
from fedagentgym.leaderboard.site.excerpts import fill_page
from fedagentgym.leaderboard.verify import verify
from tests.leaderboard.recount import recount

PLACE = Path(__file__).parents[2] / "leaderboard"
RESULTS = sorted(path.parent for path in (PLACE / "results").glob("*/*/manifest.json"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", RESULTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_committed_result_is_verified(folder: Path) -> None:
    found, written = verify(folder), ResultFolder(folder, PLACE / "verified").verification
    assert found.replayed and written is not None and written.claims == found.claims


def test_whatever_is_said_to_be_verified_is_about_a_result() -> None:
    written = {ResultFolder(folder, PLACE / "verified").verification_file for folder in RESULTS}
    assert written == set((PLACE / "verified").rglob("*.json"))


@pytest.mark.parametrize(
    "folder", [path for path in RESULTS if "methods" in path.parent.name], ids=lambda path: path.name
)
def test_areas_and_targets_are_counted_again_by_a_script(folder: Path) -> None:
    result = ResultFolder(folder)
    suite = result.suite
    found = recount(folder, suite.budget.episodes or 0, suite.target or 2.0)
    for cell in result.manifest.cells:
        assert found[cell.key]
        told = {
            name: one.mean
            for name, one in cell.measures.items()
            if name in ("area", "rounds_to_target", "bytes_to_target")
        }
        assert found[cell.key] == pytest.approx(told)


def test_the_configuration_that_is_shown_of_a_cell_is_the_one_that_was_played(
    capsys: pytest.CaptureFixture[str],
) -> None:
    played = ResultFolder(PLACE / "results" / "methods-small-skills-v1" / "local-0").configs.cells[2]
    cell = f"{played.scenario}-seed{played.seed}"
    assert main(["bench", "show", "methods-small-skills-v1", "--config", "local-0", cell]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == played.config
    for wrong in (["local-1", cell], ["local-0", "by-town-seed99"]):
        assert main(["bench", "show", "methods-small-skills-v1", "--config", *wrong]) == 2
    assert main(["bench", "show", "agents-tiny-v1", "--config", "expert", "shop-seed0"]) == 2
    assert main(["bench", "show", "methods-small-skills-v1", "--plan", "--config", "local-0", cell]) == 2


@pytest.mark.slow
def test_readme_and_docs_show_what_the_page_of_the_results_has(root: Path, tmp_path: Path) -> None:
    line = ["leaderboard", "build", str(PLACE / "results"), "--verified", str(PLACE / "verified"), "--link", "x"]
    assert main([*line, "--out", str(tmp_path)]) == 0
    for page in (root / "README.md", *(root / "docs" / "experiments").glob("*.md")):
        text = page.read_text("utf-8")
        assert text == fill_page(text, tmp_path), f"{page.name}: run make leaderboard"
