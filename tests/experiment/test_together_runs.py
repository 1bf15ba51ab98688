"""Runs whose clients roll out in one batch, each with its adapter, against runs whose clients take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.agents.model.joined import JoinedPlay
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import train
from fedagentgym.federation.commits import CommitStore
from fedagentgym.testing.runs import SMALL_CONFIG

ADAPTER: dict[str, Any] = {
    "agent": {"name": "untrained-tiny", "adapter": {"rank": 2}},
    "federation": {"clients_per_round": 3},
    "algorithm": {"name": "fedagent", "local_steps": 2},
}


def run(folder: Path, **changes: Any) -> tuple[Any, str, str]:
    """The final parameters, the episodes of both rounds, and the digest."""
    config = merge(merge(SMALL_CONFIG, ADAPTER), {**changes, "evaluation": None, "output": {"folder": str(folder)}})
    found = train(config)
    episodes = "".join(path.read_text("ascii") for path in sorted((folder / "trajectories").glob("*.jsonl")))
    return CommitStore(folder / "rounds").read(2).state.parameters, episodes, found.digest


@pytest.mark.parametrize(("method", "size"), [("fedagent", 2), pytest.param("flora", 3, marks=pytest.mark.slow)])
def test_clients_together_end_where_clients_in_turns_end(
    method: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients; `flora` moves the frozen weights from round to round."""
    served, serve = [], JoinedPlay.serve
    monkeypatch.setattr(JoinedPlay, "serve", lambda self, asked: served.append(len(asked)) or serve(self, asked))
    algorithm = {"algorithm": {"name": method, "local_steps": 1 if method == "flora" else 2}}
    parameters, episodes, _ = run(tmp_path / "turns", **algorithm)
    assert not served
    found, played, digest = run(tmp_path / "together", **algorithm, federation={"together": size})
    assert max(served) == size and played == episodes
    for name, value in parameters.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=0, err_msg=name)
    assert run(tmp_path / "again", **algorithm, federation={"together": size})[2] == digest


@pytest.mark.parametrize(
    ("assignments", "needle"),
    [
        (["federation.workers=2"], "leave out federation.workers"),
        (["federation.backend=flower"], "leave out federation.backend"),
        (["agent.adapter=null"], "set agent.adapter"),
        (["agent.forward=hf"], "leave out agent.forward"),
        (["agent.harness={command: [python, play.py]}"], "leave out agent.harness"),
        (["federation.together=1"], "together"),
        (["federation.together=17"], "together"),
    ],
)
def test_what_cannot_be_one_batch_is_refused_in_one_sentence(assignments: list[str], needle: str) -> None:
    config = merge(merge(SMALL_CONFIG, ADAPTER), {"federation": {"together": 2}})
    with pytest.raises(OptionError, match=needle):
        load_config(config, assignments)


def test_a_run_in_turns_says_nothing_of_batches() -> None:
    assert "together" not in load_config(merge(SMALL_CONFIG, ADAPTER)).plain()["federation"]
