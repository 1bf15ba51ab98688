"""Honest results, played once: the suite `smoke`, and a small suite of the agents track."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.leaderboard.entries import Entry, list_baselines, make_agent_entry
from fedagentgym.leaderboard.play import SuiteRun, open_entry, play
from fedagentgym.leaderboard.results import Result, pack
from fedagentgym.leaderboard.suite import Suite, load_suite
from tests.leaderboard.samples import AGENTS_SUITE


def play_and_pack(suite: Suite, entry: Entry, root: Path, archive: Path) -> Result:
    """Play an entry in this process, run after run, and pack it."""
    opened = open_entry(suite, entry, root)
    play([opened], workers=1)
    pack(Result(opened.folder), archive)
    return Result(archive)


@pytest.fixture(scope="package")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> SuiteRun:
    """`bench run smoke --baseline fedagent`, run after run in this process."""
    root, suite = tmp_path_factory.mktemp("smoke"), load_suite("smoke")
    (entry,) = list_baselines(suite, ["fedagent"])
    play([open_entry(suite, entry, root)], workers=1)
    return open_entry(suite, entry, root)


@pytest.fixture(scope="package")
def honest_method(smoke: SuiteRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = tmp_path_factory.mktemp("packed") / "fedagent.zip"
    pack(Result(smoke.folder), archive)
    return archive


@pytest.fixture(scope="package")
def honest_agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The expert on the agents track."""
    root = tmp_path_factory.mktemp("agents")
    return play_and_pack(AGENTS_SUITE, make_agent_entry({"name": "expert"}), root, root / "expert.zip").path
