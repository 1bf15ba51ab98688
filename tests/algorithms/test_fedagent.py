"""FedAgent and its baselines: the equivalences that need no GPU, on a world of numbers with an untrained agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.settings import merge
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit, CommitStore
from fedagentgym.federation.message import update_norm
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.testing import check_algorithm
from fedagentgym.testing.runs import SMALL_CONFIG

SPEC: dict[str, Any] = {
    **{key: SMALL_CONFIG[key] for key in ("env", "agent")},
    "rounds": 2,
    "learning": {"tasks_per_step": 4, "group_size": 4, "learning_rate": 1e-3},
    "partition": {"clients": 3, "tasks_per_client": 8},
}


def go(folder: Path, algorithm: Any, *, rounds: int = 2, **plan: Any) -> Commit:
    plain = merge(SPEC, {"algorithm": algorithm, **plan.pop("bench", {})})
    built = make_algorithm(bench := ExperimentSpec.load(plain), Runtime(bench))
    settings = FederationSettings(rounds=rounds, **plan.pop("federation", {}))
    backend = SequentialBackend(built, folder / "states")
    return run_rounds(built, backend, ServerConfig(folder, 0, settings, **plan)).commit


def theta(commit: Commit) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in commit.state.parameters.items()}


def test_one_client_is_the_centralized_run_bit_for_bit(tmp_path: Path) -> None:
    one = {"partition": {"clients": 1, "tasks_per_client": 8}}
    for number, keep in enumerate((False, True)):
        learning = {"keep_optimizer": keep}
        fed = go(
            tmp_path / f"fed{number}",
            {"name": "fedagent", "local_steps": 1},
            rounds=3,
            bench={**one, "learning": learning},
        )
        central = go(
            tmp_path / f"one{number}",
            {"name": "centralized", "local_steps": 1, "keep_optimizer": keep},
            rounds=3,
            bench=one,
        )
        assert fed.state.digest == central.state.digest
        assert update_norm(Runtime(ExperimentSpec.load(merge(SPEC, {"algorithm": {}}))).initial_weights, theta(fed)) > 0


def test_equal_clients_with_equal_streams_are_one_client(tmp_path: Path) -> None:
    same: dict[str, Any] = {"partition": {"clients": 3, "tasks_per_client": 600}}
    fed = go(tmp_path / "fed", {"name": "fedagent", "local_steps": 2}, bench=same, streams=dict.fromkeys(range(3), 0))
    alone = go(tmp_path / "one", {"name": "local", "local_steps": 2, "keep_optimizer": False}, bench=same)
    assert fed.state.digest == alone.state.digest


def test_centralized_owns_what_clients_hold_or_all_of_the_split() -> None:
    roles = {"partition": {"clients": 2, "tasks_per_client": 4, "roles": {"public": 3, "server": 2}}}

    def open_pool(**settings: Any) -> Any:
        plain = merge(merge(SPEC, roles), {"algorithm": {"name": "centralized", **settings}})
        spec = ExperimentSpec.load(plain)
        algorithm = make_algorithm(spec, Runtime(spec))
        return algorithm.resources(0).env.pool, algorithm.runtime.client_split

    union, split = open_pool()
    assert set(union.ids) == {task for client in split for task in client.tasks} and len(union) <= 8
    whole, split = open_pool(pool="split")
    assert list(whole.ids) == list(split.pool.ids) and len(whole) == 600
    assert all(task.graded for task in whole)


def test_the_global_model_is_the_mean_of_the_clients(tmp_path: Path) -> None:
    fed = go(tmp_path / "fed", {"name": "fedagent", "local_steps": 1}, rounds=1)
    parts = [theta(go(tmp_path / str(k), {"name": "local", "client": k, "local_steps": 1}, rounds=1)) for k in range(3)]
    for name, value in theta(fed).items():
        assert np.abs(value - np.mean([part[name].astype(np.float64) for part in parts], axis=0)).max() < 1e-7


def test_a_kept_optimizer_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Two steps in one round, or one step in each of two rounds: with a kept optimizer that is the same but for the streams."""
    algorithm = {"name": "centralized", "local_steps": 1}
    kept = go(tmp_path / "kept", {**algorithm, "keep_optimizer": True}, rounds=3)
    fresh = go(tmp_path / "fresh", {**algorithm, "keep_optimizer": False}, rounds=3)
    assert update_norm(theta(kept), theta(fresh)) > 0
    assert set(kept.heads) == {0}
    assert not fresh.heads


def test_payload_is_two_times_the_participants_times_the_parameters(tmp_path: Path) -> None:
    commit = go(tmp_path, {"name": "fedagent", "local_steps": 1}, federation={"clients_per_round": 2})
    size = sum(value.nbytes for value in theta(commit).values())
    for way in ("up", "down"):
        assert commit.record["bytes_total"][way]["weights"] == 2 * 2 * size
        assert commit.record["bytes_total"][way]["text"] == 0
        assert commit.record["bytes_total"][way]["framing"] < 10_000
    local = go(tmp_path / "local", {"name": "local", "local_steps": 1}, rounds=1)
    assert sum(local.record["bytes_total"]["up"].values()) == 0


def test_an_adapter_is_all_that_travels(tmp_path: Path) -> None:
    adapter = {"agent": {"name": "untrained-tiny", "adapter": {"rank": 4, "alpha": 8.0}}}
    commit = go(tmp_path, {"name": "fedagent", "local_steps": 1}, rounds=1, bench=adapter)
    weights = theta(commit)
    assert weights
    assert all("lora_" in name for name in weights)
    closed_form = sum(4 * value.size for value in weights.values())
    ranks = [4 * (value.shape[0] + value.shape[1] - 4) for value in weights.values()]
    assert closed_form == sum(4 * rank for rank in ranks)
    assert commit.record["bytes_total"]["up"]["weights"] == 3 * closed_form


def test_fedprox_without_its_term_is_fedavg_and_with_it_stays_closer(tmp_path: Path) -> None:
    start = ExperimentSpec.load(merge(SPEC, {"algorithm": {"name": "fedagent"}}))
    initial = Runtime(start).initial_weights
    plain = go(tmp_path / "plain", {"name": "fedagent", "local_steps": 3}, rounds=1)
    off = go(tmp_path / "off", {"name": "fedprox", "proximal": 0.0, "local_steps": 3}, rounds=1)
    strong = go(tmp_path / "strong", {"name": "fedprox", "proximal": 1000.0, "local_steps": 3}, rounds=1)
    assert off.state.digest == plain.state.digest
    assert update_norm(initial, theta(strong)) < update_norm(initial, theta(plain))


def test_equal_sizes_make_fedavg_the_plain_mean(tmp_path: Path) -> None:
    plain = go(tmp_path / "plain", {"name": "fedagent", "local_steps": 1}, rounds=1)
    weighted = go(tmp_path / "weighted", {"name": "fedavg-grpo", "local_steps": 1}, rounds=1)
    assert weighted.state.digest == plain.state.digest


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "rule",
    [
        "median",
        {"name": "trimmed_mean", "trim": 0.34},
        {"name": "krum", "byzantine": 0},
        {"name": "multi_krum", "byzantine": 0, "chosen": 2},
        "qfedavg",
        "fedadam",
    ],
    ids=lambda rule: rule if isinstance(rule, str) else rule["name"],
)
def test_other_rules_run_and_their_memory_is_committed(tmp_path: Path, rule: Any) -> None:
    algorithm = {"name": "fedagent", "local_steps": 1, "aggregation": rule}
    whole = go(tmp_path / "whole", algorithm, rounds=2)
    go(tmp_path / "steps", algorithm, rounds=1)
    assert go(tmp_path / "steps", algorithm, rounds=2).state.digest == whole.state.digest
    assert bool(whole.state.optimizer) == (rule == "fedadam")


def test_zero_shot_leaves_everything_as_it_is(tmp_path: Path) -> None:
    commit = go(tmp_path, {"name": "zero-shot"}, rounds=1)
    bench = ExperimentSpec.load(merge(SPEC, {"algorithm": {"name": "zero-shot"}}))
    for name, value in Runtime(bench).initial_weights.items():
        assert np.array_equal(value, theta(commit)[name])


def test_kl_towards_the_base_model_uses_the_weights_first_loaded(tmp_path: Path) -> None:
    learning = {"learning": {"kl": {"coefficient": 0.1, "reference": "base"}}}
    commit = go(tmp_path, {"name": "fedagent", "local_steps": 2}, bench=learning)
    record = commit.record["metrics"]
    assert record["kl"] > 0
    assert {"success", "reward", "episodes", "env_steps", "groups/constant", "update_norm"} <= set(record)


def test_metrics_episodes_and_participants_are_recorded(tmp_path: Path) -> None:
    commit = go(tmp_path, {"name": "fedagent", "local_steps": 2}, federation={"clients_per_round": 2})
    record = commit.record
    assert record["metrics"]["episodes"] == 2 * 2 * 16
    assert set(record["clients"]) == {str(client) for client in record["participants"]}
    samples = [json.loads(line) for line in (tmp_path / "trajectories" / "0002.jsonl").read_text().splitlines()]
    assert len(samples) == 4
    assert {"client", "task", "turns", "success"} <= set(samples[0])
    assert CommitStore(tmp_path / "rounds").list_rounds() == [0, 1, 2]


@pytest.mark.parametrize(("name", "workers"), [("fedagent", 1), ("centralized", 0)])
def test_the_conformance_check_passes(name: str, workers: int) -> None:
    run = check_algorithm(name, workers=workers, local_steps=1)
    assert run.record["algorithm"] == name


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        ({"name": "fedagnet"}, "did you mean 'fedagent'"),
        ({"name": "fedagent", "local_step": 2}, "did you mean 'local_steps'"),
        ({"name": "fedagent", "local_steps": 0}, "algorithm.local_steps"),
        ({"name": "fedagent", "aggregation": "meen"}, "algorithm.aggregation"),
        ({"name": "local", "client": -1}, "algorithm.client"),
        ({}, "algorithm.name"),
    ],
)
def test_bad_settings_are_one_sentence(algorithm: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match=says) as caught:
        make_algorithm(bench := ExperimentSpec.load(merge(SPEC, {"algorithm": algorithm})), Runtime(bench))
    assert "\n" not in str(caught.value)


def test_a_local_client_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FedAgentGymError, match="3"):
        go(tmp_path, {"name": "local", "client": 3})


def test_the_registry_names_what_there_is() -> None:
    for name in ("fedagent", "fedavg-grpo", "fedprox", "centralized", "local", "zero-shot"):
        assert ALGORITHMS.get(name).settings_class.model_fields["name"].default == name
