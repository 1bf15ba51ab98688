"""A suite that ranks every client's policy in the client's own world: played, packed, verified, refuted if changed."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import OptionError
from fedagentgym.leaderboard.entries import list_baselines
from fedagentgym.leaderboard.evidence import RefutedError
from fedagentgym.leaderboard.record import Manifest
from fedagentgym.leaderboard.results import ResultFolder, to_text
from fedagentgym.leaderboard.runs import open_run, pack_run, play_runs
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.leaderboard.verify import verify

PLAIN = {
    "name": "sample-worlds-v1",
    "track": "methods",
    "title": "Skills in two worlds",
    "config": {
        "name": "worlds",
        "env": {"id": "fedagentgym/Skills-v0", "options": {"skills": 4, "wording": "short"}},
        "partition": {"clients": 4, "tasks_per_client": 4, "seed": 0, "variant": {"kind": "swapped_procedures"}},
        "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 8}},
        "learning": {"tasks_per_step": 1, "group_size": 2},
        "algorithm": {"name": "fedagent", "local_steps": 1},
        "federation": {"rounds": 2},
        "plugins": ["fedagentgym.testing.untrained"],
    },
    "scenarios": {"worlds": {}},
    "seeds": [0],
    "selection": {"split": "val", "every": 100, "tasks": 2},
    "ranking": {"split": "test", "tasks": 3, "temperature": 1.0},
    "rank_by": "own_world",
    "ranked_round": "last",
    "baselines": {
        "fedagent": {"title": "shared"},
        "personal-head": {"title": "own", "changes": ["algorithm={name: personal-head, local_steps: 1}"]},
    },
}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return Suite.load(PLAIN)


@pytest.fixture(scope="module")
def packed(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("worlds")
    entries = list_baselines(suite, [])
    play_runs([open_run(suite, entry, root) for entry in entries], workers=1)
    for entry in entries:
        pack_run(open_run(suite, entry, root), root / "packed" / entry.name)
    return root / "packed"


@pytest.mark.parametrize(("name", "apart"), [("fedagent", False), ("personal-head", True)])
def test_own_worlds_rank_and_are_proven(name: str, apart: bool, packed: Path, suite: Suite) -> None:
    result = ResultFolder(packed / name)
    found = verify(result.path, suite=suite)
    assert found.replayed
    (cell,) = result.manifest.cells
    assert cell.chosen_round == 2, "the last round is ranked"
    worlds = result.read_cell(cell).worlds
    assert [clients for clients, _ in worlds] == ([(0,), (1,), (2,), (3,)] if apart else [(0, 2), (1, 3)])
    own = [np.mean([one.success for group in groups for one in group]) for clients, groups in worlds for _ in clients]
    assert result.manifest.overall["own_world"].mean == pytest.approx(np.mean(own))
    assert cell.measures["own_world_worst"].mean == min(own)
    assert set(result.read_values()) == {"worlds"}


def test_changed_worlds_are_refuted(packed: Path, suite: Suite, tmp_path: Path) -> None:
    place = tmp_path / "changed"
    shutil.copytree(packed / "personal-head", place)
    file = place / "worlds" / "worlds-seed0.jsonl.xz"
    lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    line = json.loads(lines[0])
    for changed, said in (
        (lines[1:], "complete"),
        ([lines[0].replace('"success": false', '"success": true'), *lines[1:]], "schema|replayed"),
        ([lines[0].replace('"clients": [0]', '"clients": [1]'), *lines[1:]], "schema|complete"),
        ([*lines, lines[-1]], "complete"),
    ):
        file.write_bytes(lzma.compress(("\n".join(changed) + "\n").encode()))
        manifest = ResultFolder(place).manifest
        files = {**manifest.files, "worlds/worlds-seed0.jsonl.xz": file_digest(file)}
        forged = manifest.model_copy(update={"files": files})
        assert isinstance(forged, Manifest) and line["clients"] == [0]
        (place / "manifest.json").write_text(to_text(forged))
        with pytest.raises(RefutedError, match=said):
            verify(place, suite=suite)


def test_a_suite_of_worlds_ranks_the_last_round() -> None:
    with pytest.raises(OptionError, match="kept of the last round: set ranked_round"):
        Suite.load({**PLAIN, "ranked_round": "best"})
