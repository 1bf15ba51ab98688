"""A private run that shows no episodes leaves nothing of its clients' tasks in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.settings import merge
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import Run, train
from fedagentgym.learning import local
from fedagentgym.testing.runs import SMALL_CONFIG

PRIVATE: dict[str, Any] = merge(
    SMALL_CONFIG,
    {
        "env": {"id": "fedagentgym/Math-v0", "options": {"size": "tiny"}},
        "partition": {"clients": 4, "tasks_per_client": 6},
        "algorithm": {
            "name": "fedagent",
            "local_steps": 1,
            "privacy": {"clip_norm": 0.5, "noise_multiplier": 1.0, "delta": 1e-3},
        },
        "federation": {"rounds": 3, "clients_per_round": 4, "quorum": 0.25},
        "learning": {"keep_optimizer": True},
        "output": {"sampled_episodes": 0, "report": "html"},
    },
)


def list_secrets(folder: Path) -> set[bytes]:
    """Ids and questions of all clients' tasks."""
    run = Run.open(load_config(folder / "config.yaml"), folder)
    found: set[bytes] = set()
    env = run.runtime.open_env(split="train")
    for client in run.runtime.client_split:
        for task in client.tasks:
            (episode,) = env.reset_many([task], [0])
            found |= {task.encode(), *(line.encode() for line in episode.view.observation.splitlines() if "?" in line)}
    return found


def test_nothing_of_a_clients_tasks_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by a client that fails with one of its tasks in its error."""
    pytest.importorskip("dp_accounting")
    original, calls = local.collect, []

    def fail_at_times(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) in (2, 7):
            raise ValueError(f"cannot play {arguments[2]}")
        return original(*arguments, **options)

    monkeypatch.setattr(local, "collect", fail_at_times)
    result = train(PRIVATE, [f"output.folder={tmp_path / 'run'}"])
    assert result.record["failures"] == 2
    secrets = list_secrets(tmp_path / "run")
    assert len(secrets) >= 24
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 8 and not (tmp_path / "run" / "trajectories").exists()
    for path in files:
        content = path.read_bytes()
        left = [secret for secret in secrets if secret in content]
        assert not left, (path.name, left[:3])


def test_an_open_run_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = local.collect, []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise ValueError(f"cannot play {arguments[2]}")
        return original(*arguments, **options)

    monkeypatch.setattr(local, "collect", fail_once)
    algorithm = {name: value for name, value in PRIVATE["algorithm"].items() if name != "privacy"}
    train({**PRIVATE, "algorithm": algorithm}, [f"output.folder={tmp_path / 'run'}", "federation.rounds=1"])
    assert "cannot play" in (tmp_path / "run" / "metrics.jsonl").read_text()
