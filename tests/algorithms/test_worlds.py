"""Own-world evaluation is play in the client's environment; what is personal is in no message; clients that disagree part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.algorithms.base import BaseAlgorithm, describe_method, make_algorithm
from fedagentgym.algorithms.card import Scale
from fedagentgym.algorithms.clustered import bipartition
from fedagentgym.algorithms.personal import PERSONAL
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.algorithms.worlds import list_worlds
from fedagentgym.base.errors import FedAgentGymError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.envs.variants import ClientVariant, Variant, register_variant, variants_of
from fedagentgym.envs.view import View
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.evaluation import check_episodes
from fedagentgym.experiment.run import train
from fedagentgym.federation.message import Message
from fedagentgym.learning.trajectory import read_lines
from fedagentgym.partitions.client_split import federate
from fedagentgym.testing.runs import SMALL_CONFIG

GUESS = GuessEnv.id


class Mirror(ClientVariant):
    """Turns every guess around."""

    top: int

    def change_action(self, action: str) -> str:
        number = action.removeprefix("guess ")
        return f"guess {self.top - int(number)}" if number.isdecimal() else action

    def change_view(self, view: View) -> View:
        return view._replace(observation=f"{view.observation} ({self.top})")


class Mirrors(Variant):
    kind = "test-mirrors"
    client_variant = Mirror
    choices: int | None = None

    def draw(self, seed: int, client: int) -> Mirror:
        return Mirror(top=10 + client % (self.choices or 50))


CONFIG: dict[str, Any] = merge(
    SMALL_CONFIG,
    {
        "partition": {"clients": 4, "variant": {"kind": "test-mirrors", "choices": 2}},
        "federation": {"clients_per_round": None},
        "evaluation": {"at_clients": ["own_world", "every_world"], "newcomers": 2, "every": 2, "tasks": 5},
        "algorithm": {"name": "fedagent", "local_steps": 1},
    },
)


@pytest.fixture(scope="module", autouse=True)
def mirrors() -> Iterator[None]:
    if Mirrors.kind not in variants_of(GUESS, GuessEnv.variants):
        register_variant(GUESS, Mirrors)
    return


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "algorithm", [{"name": "fedagent"}, {"name": "personal-head"}, {"name": "zero-shot"}, {"name": "local-all"}]
)
def test_own_worlds_are_played_as_by_hand(algorithm: dict[str, Any], tmp_path: Path) -> None:
    """Every action of the records, given to `gym.make(..., client_split=, client=, split=)`, earns what was recorded."""
    name, steps = algorithm["name"], {} if algorithm["name"] == "zero-shot" else {"local_steps": 1}
    run = train(merge(CONFIG, {"algorithm": {"name": name, **steps}, "output": {"folder": str(tmp_path / "run")}}))
    record = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])["evaluation"]
    own, matrix = record["at_clients"]["own_world"], record["at_clients"]["every_world"]["matrix"]
    made = Runtime(load_config(run.folder / "config.yaml").spec()).client_split
    solved: dict[tuple[int, ...], list[bool]] = {}
    for line in read_lines(run.folder / "evaluation" / "0002.jsonl"):
        trajectory, about = line.trajectory, line.about
        if not about.get("set", "").startswith("own_world"):
            continue
        assert about["variant"]["kind"] == "test-mirrors"
        solved.setdefault(tuple(about["clients"]), []).append(trajectory.success)
        for client in about["clients"]:
            env = gymnasium.make(GUESS, client_split=made, client=client, split="val")
            observation, info = env.reset(seed=trajectory.seed, options={"task": trajectory.task})
            for turn in trajectory.turns:
                assert observation == turn.observation and observation.endswith(f"({10 + client % 2})")
                observation, reward, terminated, _, info = env.step(turn.action)
                assert reward == turn.reward and info["valid"] == turn.valid
            assert (terminated, info["success"]) == (trajectory.terminated, trajectory.success)
    personal = name in ("personal-head", "local-all")
    assert set(solved) == ({(0,), (1,), (2,), (3,), ()} if personal else {(0, 2), (1, 3), ()})
    assert len(solved[()]) == 2 * 5, "two newcomers"
    by_client = {client: float(np.mean(found)) for clients, found in solved.items() for client in clients}
    assert own["by_client"] == [by_client[client] for client in range(4)]
    assert own["mean"] == record["choice"] == pytest.approx(np.mean(own["by_client"]))
    assert own["worst"] == min(own["by_client"]) == by_client[own["worst_client"]]
    assert own["newcomers"] == pytest.approx(np.mean(solved[()]))
    assert [matrix[client][client] for client in range(4)] == own["by_client"]
    assert check_episodes(run.folder / "evaluation" / "0002.jsonl") == []


def test_worlds_of_newcomers_are_no_clients() -> None:
    variant = {"kind": "test-mirrors", "choices": 2, "degree": 0.5}
    made = federate(GUESS, clients=6, tasks_per_client=2, variant=variant)
    worlds = list_worlds(made, apart=False, newcomers=3)
    own = [world.variant for world in worlds if world.clients]
    fresh = [world.variant for world in worlds if not world.clients]
    assert sorted(client for world in worlds for client in world.clients) == list(range(6))
    assert len(fresh) == 3 and not any(one in own for one in fresh) and None in own
    full = federate("fedagentgym/Skills-v0", clients=4, tasks_per_client=2, variant="swapped_procedures")
    with pytest.raises(OptionError, match="has 0 possibilities that no client has, 1 are asked for"):
        list_worlds(full, apart=False, newcomers=1)
    with pytest.raises(OptionError, match="this split has no variants"):
        list_worlds(federate(GUESS, clients=2, tasks_per_client=2), apart=False, newcomers=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluation": {"newcomers": 1}}, "newcomers are evaluated with at_clients"),
        ({"evaluation": {"at_clients": ["own_world"], "sets": [{"name": "a"}]}}, "leave out sets"),
        (
            {
                "evaluation": {"at_clients": ["own_world"]},
                "algorithm": {"name": "local-all"},
                "federation": {"backend": "flower"},
            },
            "stays on their machines in a deployment",
        ),
    ],
)
def test_impossible_evaluations_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FedAgentGymError, match=said):
        load_config(merge(SMALL_CONFIG, changes))


# ---- what is personal -------------------------------------------------------------------------------------------------

ADAPTER = {"agent": {"name": "untrained-tiny", "adapter": {"rank": 3, "alpha": 6.0}}}
PERSONAL_METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "local-all": ({}, {}),
    "personal-head": ({}, {}),
    "personal-layers": ({"layers": ["*.1.mlp.*"]}, {}),
    "personal-adapter": ({"personal_rank": 1}, ADAPTER),
}


def open_method(name: str) -> BaseAlgorithm[Any]:
    settings, config = PERSONAL_METHODS[name]
    spec = load_config(merge(merge(SMALL_CONFIG, config), {"algorithm": {"name": name, **settings}})).spec()
    return make_algorithm(spec, Runtime(spec))


@pytest.mark.parametrize("name", PERSONAL_METHODS)
def test_no_personal_array_is_in_any_message(name: str) -> None:
    """A form refuses every array that it does not declare; what is shared and what is kept make up the trained parameters."""
    method: Any = open_method(name)
    weights = method.runtime.initial_weights
    shared, own = method.split(weights)
    assert own and {**method.join(shared, own)}.keys() == weights.keys()
    assert all(np.array_equal(array, weights[key]) for key, array in method.join(shared, own).items())
    assert sum(array.size for part in (shared, own) for array in part.values()) == sum(a.size for a in weights.values())
    for operation in method.operations.values():
        for form in (operation.request, operation.reply):
            assert {key: part.shape for key, part in form.arrays.items()} == {
                f"weights/{key}": array.shape for key, array in shared.items()
            }
        assert set(operation.state.sets[PERSONAL]) == set(own) and not operation.state.weights
    moved = {key: array + 1 for key, array in own.items()}
    kept = Message(sets={PERSONAL: moved})
    found = method.client_parameters(method.initial_state(), 0, kept)
    assert all(np.array_equal(array, found[key]) for key, array in method.join(shared, moved).items())


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_policies_of_clients_are_declared(name: str) -> None:
    cls = ALGORITHMS.get(name)
    own = cls.client_parameters is not BaseAlgorithm.client_parameters
    assert own == describe_method({"name": name}, Scale()).keeps_policies


@pytest.mark.parametrize(
    ("algorithm", "config", "said"),
    [
        ({"name": "personal-layers", "layers": ["nothing.*"]}, {}, "no trained parameter would stay with the clients"),
        ({"name": "personal-layers", "layers": []}, {}, "no trained parameter would stay"),
        ({"name": "personal-adapter"}, {}, "the agent has no adapter"),
        ({"name": "personal-adapter", "personal_rank": 3}, ADAPTER, "its rank is 3: set agent.adapter"),
        ({"name": "clustered", "aggregation": "median"}, {}, "averages within clusters"),
    ],
)
def test_a_method_without_a_personal_part_is_refused(
    algorithm: dict[str, Any], config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(FedAgentGymError, match=said):
        train(merge(merge(SMALL_CONFIG, config), {"algorithm": algorithm, "output": {"folder": str(tmp_path / "run")}}))


def test_two_adapters_are_one_of_their_joint_rank() -> None:
    """B A of the joined factors is the sum of the shared and the personal product."""
    method: Any = open_method("personal-adapter")
    random = np.random.default_rng(0)
    weights = {key: random.normal(size=array.shape) for key, array in method.runtime.initial_weights.items()}
    shared, own = method.split(weights)
    pairs = [(key, key.replace("lora_A", "lora_B")) for key in weights if "lora_A" in key]
    assert pairs
    for a, b in pairs:
        np.testing.assert_allclose(weights[b] @ weights[a], shared[b] @ shared[a] + own[b] @ own[a], atol=1e-12)


# ---- clusters ---------------------------------------------------------------------------------------------------------


def test_a_bipartition_has_the_smallest_greatest_cosine_between_its_parts() -> None:
    random = np.random.default_rng(1)
    for size in (2, 3, 5, 7):
        rows = random.normal(size=(size, 4))
        similarity = rows @ rows.T
        first, second, found = bipartition(similarity)
        assert sorted([*first, *second]) == list(range(size)) and first and second
        assert found == max(similarity[i, j] for i in first for j in second)
        masks = [[bool(number >> place & 1) for place in range(size)] for number in range(1, 2**size - 1)]
        best = min(similarity[np.ix_(mask, ~np.array(mask))].max() for mask in masks)
        assert found == best


def test_clients_that_pull_apart_get_models_of_their_own(tmp_path: Path) -> None:
    method: Any = make_algorithm(
        (spec := load_config(merge(SMALL_CONFIG, {"algorithm": {"name": "clustered"}})).spec()), Runtime(spec)
    )
    model = {"w": np.zeros(6, np.float32)}
    random = np.random.default_rng(2)
    pull = np.array([1, 1, 1, 0, 0, 0], np.float32)
    replies = {
        client: {"w": (-1) ** client * pull + random.normal(0, 0.1, 6).astype(np.float32)} for client in range(6)
    }
    assert method._divide(model, replies) == [[0, 2, 4], [1, 3, 5]]
    together = {client: {"w": pull + random.normal(0, 0.1, 6).astype(np.float32)} for client in range(6)}
    assert method._divide(model, together) == [[0, 1, 2, 3, 4, 5]]
