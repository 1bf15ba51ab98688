"""A finished run made longer ends where one ends that was planned so long; its chain says up to where it was another plan."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.experiment.record import read_result
from fedagentgym.experiment.run import resume, train
from fedagentgym.federation.commits import extend_inputs, read_chain
from fedagentgym.testing.runs import SMALL_CONFIG

CONFIG: dict[str, Any] = merge(
    SMALL_CONFIG,
    {
        "algorithm": {"name": "fedagent", "local_steps": 1},
        "partition": {"clients": 2, "tasks_per_client": 4, "roles": {}},
        "learning": {"tasks_per_step": 1, "group_size": 2},
        "federation": {"rounds": 1},
        "evaluation": None,
    },
)


def test_a_run_is_made_longer_twice(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = train(CONFIG, [f"output.folder={folder}"])
    longer = resume(folder, ["federation.rounds=2"])
    assert longer.record["rounds"] == 2 and longer.record["config_digest"] != first.record["config_digest"]
    longest = resume(folder, ["federation.rounds=3"])
    planned = train(CONFIG, [f"output.folder={tmp_path / 'planned'}", "federation.rounds=3"])
    assert longest.digest == planned.digest
    assert longest.record["config_digest"] == planned.record["config_digest"]
    assert read_result(folder).rounds == 3
    chain = read_chain(folder)
    assert chain is not None
    assert [len(note.links.inputs) for note in chain.notes] == [2, 2, 3, 4]
    assert resume(folder).digest == planned.digest
    with pytest.raises(OptionError, match="not lowered: it is 3"):
        resume(folder, ["federation.rounds=2"])
    _forge_a_round_of_another_run(folder)


def _forge_a_round_of_another_run(folder: Path) -> None:
    """A plan with other settings is none of the shorter ones, whatever the notes say."""
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate: 0.001", "learning_rate: 0.002"))
    with pytest.raises(DataError, match="another configuration"):
        resume(folder, ["federation.rounds=4"])
    assert "rounds: 3" in config.read_text()
    assert json.loads((folder / "result.json").read_text())["rounds"] == 3


def test_a_rate_that_decays_over_the_run_forbids_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    decaying = merge(CONFIG, {"learning": {"schedule": {"name": "linear"}}, "federation": {"rounds": 0}})
    train(decaying, [f"output.folder={folder}"])
    with pytest.raises(OptionError, match=r"learning\.schedule lets the learning rate decay"):
        resume(folder, ["federation.rounds=1"])


def test_only_shorter_plans_are_named() -> None:
    inputs = {"configuration": "b", "configuration up to round 1": "a", "configuration up to round x": "a"}
    newest: Any = SimpleNamespace(links=SimpleNamespace(inputs=inputs), round=4)
    found = extend_inputs({"configuration": "c"}, newest, lambda: {"a", "b"})
    assert found == {"configuration": "c", "configuration up to round 1": "a", "configuration up to round 4": "b"}
    assert extend_inputs({"configuration": "c"}, newest, set) == {"configuration": "c"}
