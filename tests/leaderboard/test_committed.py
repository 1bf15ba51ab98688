"""The results in the repository are verified, and the table of README is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.cli.main import main
from fedagentgym.leaderboard.record import Verification
from fedagentgym.leaderboard.results import VERIFICATION, read_document
from fedagentgym.leaderboard.site.tables import fill_page, write_excerpt
from fedagentgym.leaderboard.verify import verify

RESULTS = sorted(
    path.parent for path in (Path(__file__).parents[2] / "leaderboard" / "results").glob("*/*/manifest.json")
)


@pytest.mark.slow
@pytest.mark.parametrize("folder", RESULTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_committed_result_is_verified(folder: Path) -> None:
    found, written = verify(folder), read_document(Verification, folder / VERIFICATION)
    assert found.replayed and (written.manifest, written.claims) == (found.manifest, found.claims)


@pytest.mark.slow
def test_readme_shows_what_the_page_of_the_results_has(root: Path, tmp_path: Path) -> None:
    assert (
        main(["leaderboard", "build", str(root / "leaderboard" / "results"), "--out", str(tmp_path), "--link", "x"])
        == 0
    )
    page = (root / "README.md").read_text("utf-8")
    assert page == fill_page(page, write_excerpt(tmp_path)), "run: make leaderboard"
