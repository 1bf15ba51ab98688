"""The results that lie in the repository: verified, and the page is the one that is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.cli.main import main
from fedagentgym.leaderboard import intervals
from fedagentgym.leaderboard.record import VERIFICATION, Verification, read_document
from fedagentgym.leaderboard.verify import verify
from tests.leaderboard.test_runs import list_files

RESULTS = sorted(
    path.parent for path in (Path(__file__).parents[2] / "leaderboard" / "results").glob("*/*/manifest.json")
)


@pytest.mark.slow
@pytest.mark.parametrize("folder", RESULTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_committed_result_is_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)
    found, written = verify(folder), read_document(Verification, folder / VERIFICATION)
    assert found.replayed and (written.manifest, written.claims) == (found.manifest, found.claims)


@pytest.mark.slow
def test_the_committed_page_is_made_of_the_results(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)
    results = str(root / "leaderboard" / "results")
    assert main(["leaderboard", "build", results, "--out", str(tmp_path / "site"), "--link", "../results"]) == 0
    assert list_files(tmp_path / "site") == list_files(root / "leaderboard" / "site")
