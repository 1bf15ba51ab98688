"""The methods with their additions switched off, bit for bit, and the sizes of their messages."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedagentgym.algorithms.averaging import AcceptedReply
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import derive, stream
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.advantages import group_objective

SPEC: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0", "options": {"max_turns": 3}},
    "agent": "untrained-tiny",
    "rounds": 2,
    "learning": {"tasks_per_step": 4, "group_size": 4, "learning_rate": 1e-3},
    "partition": {"clients": 3, "tasks_per_client": 8, "roles": {"public": 8, "auxiliary": 8, "server": 8}},
}
OBJECTIVES = {
    "learning": {"objectives": [{"name": "accuracy/guess", "weight": 0.7}, {"name": "length", "weight": 0.3}]}
}


UNLIKE = {"sampler": "coverage", "min_tasks": 5, "tasks_per_client": 12, "max_tasks": 30, "xi": 1.0}


def make(algorithm: Any, bench: Any = None) -> Any:
    loaded = ExperimentSpec.load(merge(SPEC, {"algorithm": algorithm, **(bench or {})}))
    return make_algorithm(loaded, Runtime(loaded))


def go(folder: Path, algorithm: Any, bench: Any = None, rounds: int = 2) -> Commit:
    built = make(algorithm, bench)
    plan = ServerConfig(folder, 0, FederationSettings(rounds=rounds))
    return run_rounds(built, SequentialBackend(built, folder / "states"), plan).commit


@functools.cache
def _go_once(algorithm: str, bench: str, rounds: int) -> Commit:
    with tempfile.TemporaryDirectory() as folder:
        return go(Path(folder), json.loads(algorithm), json.loads(bench), rounds)


def go_once(algorithm: Any, bench: Any = None, rounds: int = 2) -> Commit:
    """A run with which several tests compare theirs."""
    return _go_once(json.dumps(algorithm), json.dumps(bench), rounds)


def theta(commit: Commit) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in commit.state.parameters.items()}


def test_pubswap_that_never_swaps_is_fedavg_of_grpo(tmp_path: Path) -> None:
    """Clients of equal size, so that the weighted mean is the mean."""
    swap = go(tmp_path / "swap", {"name": "pubswap", "local_steps": 2, "swap_period": 3, "aggregation": "weighted"})
    plain = go_once({"name": "fedavg-grpo", "local_steps": 2})
    assert theta(swap) == theta(plain)


SPARSE = {"learning": {"group_size": 2, "minibatches": 4}}
"""Learning in which many mini-batches hold no group with two different rewards."""


@pytest.mark.parametrize(
    ("method", "rounds"),
    [
        ({"name": "fedprox", "proximal": 0.0}, 2),
        ({"name": "scaffold"}, 1),  # its variates are zero in the first round
        ({"name": "feddyn", "alpha": 0.0, "correct_server": False}, 2),
        ({"name": "feddyn", "alpha": 1e-300, "correct_server": False}, 2),
        ({"name": "pubswap", "swap_period": 4}, 2),
        ({"name": "fgrpo"}, 1),  # nobody has a history in the first round
        ({"name": "fedagent", "server_step": 1.0, "server_momentum": 0.0}, 2),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else str(value),
)
def test_a_method_without_its_addition_is_fedavg_step_for_step(
    method: dict[str, Any], rounds: int, tmp_path: Path
) -> None:
    """Also where mini-batches have no advantages: no method takes a step on them that FedAvg does not take."""
    own = go(tmp_path / "own", {"local_steps": 3, **method}, SPARSE, rounds)
    plain = go_once({"name": "fedagent", "local_steps": 3}, SPARSE, rounds)
    assert theta(own) == theta(plain)
    for name in ("optimizer_steps", "update/empty"):
        assert own.record["metrics"][name] == plain.record["metrics"][name] > 0, name


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "feddyn"])
def test_empty_minibatches_take_steps_with_every_method_or_with_none(method: str) -> None:
    counts = {}
    for rule in ("skip", "step"):
        learning = merge(SPARSE, {"learning": {"empty_minibatches": rule}})
        records = [
            go_once({"name": name, "local_steps": 3}, learning, 1).record["metrics"] for name in (method, "fedagent")
        ]
        assert records[0]["optimizer_steps"] == records[1]["optimizer_steps"]
        assert records[0]["update/empty"] == records[1]["update/empty"] > 0
        counts[rule] = records[0]["optimizer_steps"]
    assert counts["skip"] < counts["step"] == 3 * 3 * 4


def test_fedavg_whose_moves_add_up_is_feddyn_of_one_move_less(tmp_path: Path) -> None:
    """FedDyn's server adds the sum of all moves to the mean, whatever alpha is; momentum 1 the sum of those before. So the first
    round of FedDyn goes twice as far."""
    start = make({"name": "fedagent"}).runtime.initial_weights
    ends = {}
    for name, algorithm in {
        "feddyn": {"name": "feddyn", "alpha": 0.0},
        "momentum": {"name": "fedagent", "server_momentum": 1.0},
        "twice": {"name": "fedagent", "server_step": 2.0},
    }.items():
        ends[name] = go(tmp_path / name, {"local_steps": 2, **algorithm}, rounds=1).state.parameters
    for name, begun in start.items():
        move = ends["momentum"][name].astype(np.float64) - begun
        np.testing.assert_allclose(ends["feddyn"][name] - begun, 2 * move, atol=1e-6)
        np.testing.assert_allclose(ends["feddyn"][name], ends["twice"][name], atol=1e-7)


def test_pubswap_with_public_steps_is_not() -> None:
    swap = go_once({"name": "pubswap", "local_steps": 2, "swap_period": 2, "public_tasks": 4})
    plain = go_once({"name": "fedavg-grpo", "local_steps": 2})
    assert theta(swap) != theta(plain)
    assert swap.record["metrics"]["public/answers"] == 3 * 4 * 4


def test_the_control_of_pubswap_has_the_same_public_steps_and_swaps_nothing(tmp_path: Path) -> None:
    given = {"name": "pubswap", "local_steps": 2, "swap_period": 2, "public_tasks": 4}
    control = go(tmp_path / "control", {**given, "swap": "none"})
    plain = go_once({"name": "fedavg-grpo", "local_steps": 2})
    swapped = go_once(given)
    assert theta(control) != theta(plain)
    metrics = [run.record["metrics"] for run in (control, swapped)]
    assert metrics[0]["public/swapped"] == 0.0 < metrics[1]["public/swapped"]
    assert metrics[0]["episodes"] == metrics[1]["episodes"] and metrics[0]["public/answers"] == 3 * 4 * 4


@pytest.mark.parametrize("steps", [1, 3])
def test_fedmoa_without_its_additions_is_fedagent(tmp_path: Path, steps: int) -> None:
    """Both weigh all clients alike, also such that hold unlike numbers of tasks."""
    unlike = {**OBJECTIVES, "partition": UNLIKE}
    moa = go(
        tmp_path / "moa", {"name": "fedmoa", "step_size": 0.0, "aggregation": "mean", "local_steps": steps}, unlike
    )
    plain = go_once({"name": "fedagent", "local_steps": steps}, unlike)
    assert theta(moa) == theta(plain)


def test_fedmoa_counts_equal_clients_equally(tmp_path: Path) -> None:
    """With fixed, equal weights every alpha is 1/M: the two stages are the plain mean up to rounding."""
    two = go(tmp_path / "two", {"name": "fedmoa", "step_size": 0.0, "local_steps": 1}, OBJECTIVES)
    plain = go_once({"name": "fedavg-grpo", "local_steps": 1}, OBJECTIVES)
    for name, value in two.state.parameters.items():
        assert np.abs(np.asarray(value) - np.asarray(plain.state.parameters[name])).max() < 1e-6


@pytest.mark.parametrize("length", [0.0, 0.5])
def test_experts_that_know_all_answers_make_fedgrpo_central(length: float, tmp_path: Path) -> None:
    """All experts AE and `pool`: the M equal rows change neither mean nor deviation of the candidates' rewards, to which terms
    beside the experts' score are added as they are."""
    from fedagentgym.learning.learner import LocalTraining
    from fedagentgym.learning.state import SiteState

    bench: dict[str, Any] = {
        "env": {"options": {"max_turns": 8}},
        "partition": {"clients": 1, "tasks_per_client": 200, "roles": {"auxiliary": 8, "server": 40}},
    }
    if length:
        objectives = [
            {"name": "score", "weight": 8},
            {"name": "format", "weight": 0},
            {"name": "length", "weight": length},
        ]
        bench["learning"] = {"objectives": objectives, "optimizer": "sgd"}  # AdamW makes whole steps of rounding errors
    algorithm = make(
        {"name": "fedgrpo", "experts": 1, "neighbours": 3, "scorer": "reward_model", "format_weight": 0.0}, bench
    )
    fed = go(
        tmp_path,
        {"name": "fedgrpo", "experts": 1, "neighbours": 3, "scorer": "reward_model", "format_weight": 0.0},
        bench,
        rounds=1,
    )
    learning = algorithm.runtime.learning
    held = algorithm.runtime.open_env(pool=algorithm.runtime.client_split.pool.subset(algorithm.questions.pool.ids))
    local = LocalTraining(algorithm.runtime.agent, held, learning)
    local.load_state(SiteState(algorithm.runtime.initial_weights))
    groups = local.collect_groups(derive(0, "server", 1, "play"))
    scores = [
        np.array([8 * trajectory.score for trajectory in group]) + length * np.array(group_objective(group, "length"))
        for group in groups
    ]
    spread = [(row - row.mean()) / (row.std() + 1e-6) if np.ptp(row) else np.zeros(len(row)) for row in scores]
    assert any(np.ptp(row) for row in scores), "no group differs: the test would show nothing"
    assert not length or any(np.ptp(group_objective(group, "length")) for group in groups)
    local.update(groups, advantages=[row.tolist() for row in spread])
    for name, value in local.get_state().weights.items():
        assert np.abs(value - np.asarray(fed.state.parameters[name])).max() < 1e-6


@pytest.mark.parametrize(
    "objectives",
    [
        [{"name": "score", "weight": 7}, {"name": "format"}],
        [{"name": "score", "weight": 8}],
        [{"name": "score", "weight": 8}, {"name": "format"}, {"name": "accuracy/guess"}],
        [{"name": "score", "weight": 8}, {"name": "format"}, {"name": "reward", "weight": 0.1}],
    ],
)
def test_fedgrpo_refuses_objectives_that_contradict_it_or_need_the_answer(objectives: list[dict[str, Any]]) -> None:
    with pytest.raises(OptionError, match="make them agree"):
        make({"name": "fedgrpo", "neighbours": 3}, {"learning": {"objectives": objectives}})


def test_fedgrpo_sends_four_bytes_per_score_and_no_weights(tmp_path: Path) -> None:
    commit = go(tmp_path, {"name": "fedgrpo", "experts": 2, "neighbours": 3, "scorer": "reward_model"})
    total = commit.record["bytes_total"]
    candidates, questions, experts, rounds = 4, 4, 2, 2
    assert total["up"]["scores"] == rounds * questions * experts * candidates * 4 + 3 * 1  # and 8 bits per client, once
    assert total["up"]["weights"] == total["down"]["weights"] == total["up"]["text"] == 0
    assert total["down"]["text"] > 0


def test_missing_roles_and_impossible_settings_are_one_sentence() -> None:
    with pytest.raises(OptionError, match=r"partition\.roles\.auxiliary holds 8"):
        make({"name": "fedgrpo", "scorer": "reward_model"}).check_start(3)
    with pytest.raises(OptionError, match="holds 8"):
        make({"name": "pubswap", "public_tasks": 9, "local_steps": 2}).check_start(3)
    without = ExperimentSpec.load(
        {**SPEC, "partition": {"clients": 3, "tasks_per_client": 8}, "algorithm": {"name": "pubswap"}}
    )
    with pytest.raises(OptionError, match="no role 'public'"):
        make_algorithm(without, Runtime(without)).draw_public_tasks(stream(0))
    with pytest.raises(OptionError, match="there are 3 clients"):
        make({"name": "fedgrpo", "experts": 4, "neighbours": 3, "scorer": "reward_model"}).check_start(3)
    with pytest.raises(OptionError, match="reward_model"):
        make({"name": "fedgrpo", "neighbours": 3}).check_start(3)
    with pytest.raises(OptionError, match="exactly one accuracy"):
        make({"name": "fedmoa", "objectives": [["length"]]})
    with pytest.raises(OptionError, match=r"set agent\.adapter"):
        make({"name": "fedpetuning"})
    with pytest.raises(OptionError, match="cannot exceed"):
        make({"name": "dpsda-fl", "candidates": 5, "synthetic_tasks": 6})


def test_fedmoa_clusters_by_accuracy_and_weighs_clusters_by_size() -> None:
    moa = make({"name": "fedmoa"}, OBJECTIVES)
    objectives = {
        0: {"accuracy/math": 0.5, "format": 0.5},
        1: {"accuracy/math": 0.3, "format": 0.7},
        2: {"accuracy/code": 1.0},
    }
    replies = [
        AcceptedReply(k, examples, 0.0, {"objectives": objectives[k]}, {}, ())
        for k, examples in ((0, 10), (1, 30), (2, 20))
    ]
    alpha, clusters = moa.compute_cluster_shares(replies)
    assert clusters == {"accuracy/math": [0, 1], "accuracy/code": [2]}
    scores = np.array([1 / (0.5 + 1e-6), 1 / (0.3 + 1e-6)])
    expected = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    assert np.allclose([alpha[0], alpha[1]], expected) and alpha[2] == 1.0
    weights = moa.client_weights(replies, None)
    by_hand = (40 * (expected[0] * 0 + expected[1] * 1) + 20 * 2) / 60
    assert np.isclose(np.average([0.0, 1.0, 2.0], weights=weights), by_hand)
    alone, of_one = moa.compute_cluster_shares(replies[2:])
    assert alone == {2: 1.0} and of_one == {"accuracy/code": [2]}, "a cluster without clients this round counts nothing"


def test_fedmoa_over_two_kinds_of_task(tmp_path: Path) -> None:
    bench = {
        "env": {"id": "fedagentgym/Mixture-v0", "options": {"size": "tiny", "kinds": ["math", "qa"]}},
        "agent": {"name": "untrained-tiny", "decoding": {"max_new_tokens": 6, "constrained": False}},
        "learning": {"tasks_per_step": 2, "group_size": 2},
        "partition": {"sampler": "by_source", "clients": 2},
    }
    plain = {key: value for key, value in merge(SPEC, bench).items() if key != "partition"}
    loaded = ExperimentSpec.load({**plain, "partition": bench["partition"], "algorithm": MIXED})
    built = make_algorithm(loaded, Runtime(loaded))
    plan = ServerConfig(tmp_path, 0, FederationSettings(rounds=2))
    commit = run_rounds(built, SequentialBackend(built, tmp_path / "states"), plan).commit
    assert commit.record["metrics"]["clusters"] == 2 and not commit.record["failures"]
    assert {name for name in commit.record["clients"]["0"] if name.startswith("weight/")} == {
        "weight/accuracy/math",
        "weight/format",
    }


MIXED = {"name": "fedmoa", "local_steps": 2, "objectives": [["accuracy", "format"]]}
