"""Honest results, played once: the suite `smoke`, and a small suite of the agents track."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.leaderboard.entries import list_baselines, make_agent_entry
from fedagentgym.leaderboard.runs import SuiteRun, open_run, pack_run, play_runs
from fedagentgym.leaderboard.suite import load_suite
from tests.leaderboard.samples import AGENTS_SUITE


@pytest.fixture(scope="package")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> SuiteRun:
    """`bench run smoke --baseline fedagent`, cell after cell in this process."""
    root, suite = tmp_path_factory.mktemp("smoke"), load_suite("smoke")
    play_runs([open_run(suite, entry, root) for entry in list_baselines(suite, ["fedagent"])], workers=1)
    return open_run(suite, list_baselines(suite, ["fedagent"])[0], root)


@pytest.fixture(scope="package")
def honest_method(smoke: SuiteRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "fedagent"
    pack_run(smoke, folder)
    return folder


@pytest.fixture(scope="package")
def honest_agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The expert on the agents track."""
    root = tmp_path_factory.mktemp("agents")
    entry = make_agent_entry({"name": "expert"})
    play_runs([open_run(AGENTS_SUITE, entry, root)], workers=1)
    folder = root / "packed"
    pack_run(open_run(AGENTS_SUITE, entry, root), folder)
    return folder
