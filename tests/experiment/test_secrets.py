"""A private run leaves nothing of its clients' tasks in its folder, and does not reveal who took part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.export import export_policy
from fedagentgym.experiment.opened import Run
from fedagentgym.experiment.run import resume, train
from fedagentgym.federation.algorithm import draw_participants
from fedagentgym.federation.checks import SECRET, format_privacy
from fedagentgym.learning import learner
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
        "output": {"report": "html"},
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
    original, calls = learner.collect, []

    def fail_at_times(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) in (2, 7):
            raise ValueError(f"cannot play {arguments[2]}")
        return original(*arguments, **options)

    monkeypatch.setattr(learner, "collect", fail_at_times)
    result = train(PRIVATE, [f"output.folder={tmp_path / 'run'}"], force=True)
    assert len(calls) >= 7 and result.record["failures"] == 0, "who fails took part: records do not say so"
    secrets = list_secrets(tmp_path / "run")
    assert len(secrets) >= 24
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 8 and not (tmp_path / "run" / "trajectories").exists()
    for path in files:
        content = path.read_bytes()
        left = [secret for secret in secrets if secret in content]
        assert not left, (path.name, left[:3])


def test_an_open_run_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = learner.collect, []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise ValueError(f"cannot play {arguments[2]}")
        return original(*arguments, **options)

    monkeypatch.setattr(learner, "collect", fail_once)
    algorithm = {name: value for name, value in PRIVATE["algorithm"].items() if name != "privacy"}
    train({**PRIVATE, "algorithm": algorithm}, [f"output.folder={tmp_path / 'run'}", "federation.rounds=1"], force=True)
    assert "cannot play" in (tmp_path / "run" / "metrics.jsonl").read_text()


SAMPLED = ["federation.clients_per_round=2", "federation.rounds=3"]


class Stop:
    """Ends a run after its second round, as a kill does."""

    def begin(self, rounds: int) -> None:
        pass

    def round_done(self, record: Mapping[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt


def test_who_took_part_cannot_be_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the records, the report, or an exported model, which tell the seed; and killed runs draw the same again."""
    pytest.importorskip("dp_accounting")
    original, asked = Averaging.run_round, []

    def run_round(self: Any, state: Any, this_round: Any) -> Any:
        asked.append((this_round.number, this_round.participants))
        return original(self, state, this_round)

    monkeypatch.setattr(Averaging, "run_round", run_round)
    first, second = tmp_path / "first", tmp_path / "second"
    with pytest.raises(KeyboardInterrupt):
        train(PRIVATE, [*SAMPLED, f"output.folder={first}"], observers=[Stop()], force=True)
    shutil.copytree(first, second)
    results = [resume(folder) for folder in (first, second)]
    assert results[0].digest == results[1].digest
    secret = int((first / SECRET).read_text(), 16)
    assert asked == [(number, draw_participants(secret, number, range(4), 2)) for number in (1, 2, 3, 3)]
    other = train(PRIVATE, [*SAMPLED, f"output.folder={tmp_path / 'other'}"], force=True)
    assert other.digest != results[0].digest
    for line in (first / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert not (record["participants"] or record["clients"] or record["client_seconds"] or record["failures"])
        assert {name.partition("/")[0] for name in record["metrics"]} <= {"privacy", "episodes", "optimizer_steps"}
    alike = [
        json.loads(line)["bytes"]
        for folder in (first, tmp_path / "other")
        for line in (folder / "metrics.jsonl").open()
    ]
    assert alike[:4] == alike[4:], "sizes of messages do not depend on who took part"
    export_policy(first, tmp_path / "export")
    key = (first / SECRET).read_text().strip()
    for path in (path for place in (first, tmp_path / "export") for path in place.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert path == first / SECRET or not any(one in content for one in (key.encode(), bytes.fromhex(key)))
    found = results[0].record["privacy"]
    assert found["epsilon"] > 0 and "who took part is known to nobody but the server" in found["assumed"]
    for page in (first / "report.html", tmp_path / "export" / "README.md"):
        assert format_privacy(found) in page.read_text("utf-8")
    (first / SECRET).unlink()
    with pytest.raises(DataError, match="draws from it"):
        resume(first, ["federation.rounds=4"])


def test_a_run_that_can_be_repeated_reports_no_epsilon(tmp_path: Path) -> None:
    changes = ["algorithm.privacy.secret=false", "federation.rounds=1"]
    one, two = (train(PRIVATE, [*changes, f"output.folder={tmp_path / name}"], force=True) for name in ("one", "two"))
    assert one.digest == two.digest and not (tmp_path / "one" / SECRET).exists()
    assert one.record["privacy"] is None and "epsilon" not in (tmp_path / "one" / "metrics.jsonl").read_text()


def test_a_private_run_asks_no_client_what_it_finds_on_its_own_tasks() -> None:
    held = {**PRIVATE, "partition": {"sampler": "held", "clients": 4}, "evaluation": {"at_clients": ["held_out"]}}
    with pytest.raises(OptionError, match="a private run leaves it out"):
        load_config(held)
    assert load_config(held, ["algorithm.privacy.secret=false"]).partition.sampler == "held"
