"""Environments are pickled and copied as what they were made with, and share what they can."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import pytest

import fedagentgym
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.envs import open_env
from fedagentgym.envs.make import MAX_POOLS
from fedagentgym.envs.pool import TaskPool

WORLDS: dict[str, dict[str, Any]] = {
    "Guess": {"seed": 3},
    "ALFWorld": {"size": "tiny"},
    "WebShop": {"size": "tiny", "num_prev_obs": 1},
    "Math": {"size": "tiny", "tools": ["calc"]},
    "QA": {"tools": ["search"], "corpus": "all", "attempts": 2},
    "Skills": {"skills": 4, "turns": 2},
    "Code": {"size": "tiny"},
    "Mixture": {"size": "tiny", "kinds": ["math", "qa"]},
    "Records": {"size": "tiny"},
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),
    "cloudpickle": lambda env: pickle.loads(cloudpickle.dumps(env)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def make(name: str) -> gymnasium.Env[str, str]:
    return gymnasium.make(f"fedagentgym/{name}-v0", **WORLDS[name])


def play_on(env: gymnasium.Env[str, str]) -> list[Any]:
    """The texts of an environment from here on: the rest of its episode, and the next one that its own draws pick."""
    said: list[Any] = [env.step("guess 3")]
    if not any(said[0][2:4]):
        said.append(env.step("search[shoes]"))
    return [*said, env.reset(), env.step("look")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WORLDS)
def test_a_copy_goes_on_as_the_original(name: str, way: str) -> None:
    env = make(name).unwrapped  # a shallow copy of a wrapper is a wrapper around the same environment
    fresh = WAYS[way](env)
    assert fresh.reset(seed=5) == env.reset(seed=5)
    again = WAYS[way](env)
    assert again is not env and again.unwrapped.pool.digest == env.unwrapped.pool.digest  # type: ignore[attr-defined]
    assert again.spec == env.spec
    expected = play_on(env)
    assert play_on(again) == expected


@pytest.mark.parametrize("name", WORLDS)
def test_a_pickle_is_small(name: str) -> None:
    assert len(pickle.dumps(make(name).unwrapped)) < 2000


def test_a_spawned_process_gets_it() -> None:
    env = open_env("fedagentgym/Guess-v0")
    env.reset(seed=1)
    program = (
        "import pickle, sys; env = pickle.load(sys.stdin.buffer); print(env.episode.view.observation, env.pool.digest)"
    )
    there = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(env), capture_output=True, check=True)
    assert there.stdout.decode().strip() == f"{env.episode.view.observation} {env.pool.digest}"


def test_a_clients_environment_and_its_split_can_be_pickled() -> None:
    split = fedagentgym.federate("fedagentgym/WebShop-v0", partition="uniform", clients=3, tasks_per_client=5)
    env = split.client(1).open_env()
    again = pickle.loads(pickle.dumps(env))
    assert list(again.pool.ids) == list(env.pool.ids)
    assert pickle.loads(pickle.dumps(split)).digest == split.digest
    server = pickle.loads(pickle.dumps(split.pool.without_answers(split.pool.ids[:3])))
    assert not server[0].graded and server[0].id == split.pool.ids[0]


def test_a_pool_of_records_is_pickled_with_its_tasks() -> None:
    records = [{"category": "a", "payload": (10, number), "hardness": 0.5} for number in range(1, 4)]
    pool = TaskPool.from_records(records, env="fedagentgym/Guess-v0")
    again = pickle.loads(pickle.dumps(pool.subset(pool.ids[1:])))
    assert [task.payload for task in again] == [(10, 2), (10, 3)] and again[0].hardness == 0.5
    env = pickle.loads(pickle.dumps(open_env("fedagentgym/Guess-v0", pool=pool)))
    assert env.pool.digest == pool.digest


def test_a_pickle_is_refused_where_its_data_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = pickle.dumps(open_env("fedagentgym/Guess-v0", seed=77).pool)
    monkeypatch.setattr("fedagentgym.envs.make._pools", OrderedDict())
    monkeypatch.setattr("fedagentgym.envs.guess.GENERATOR_VERSION", 9)
    with pytest.raises(DataError, match="pickled with other data"):
        pickle.loads(stored)


@pytest.mark.parametrize("name", WORLDS)
def test_environments_of_one_world_share_their_pool(name: str) -> None:
    envs = [make(name).unwrapped for _ in range(3)]
    assert len({id(env.pool) for env in envs}) == 1  # type: ignore[attr-defined]
    other = gymnasium.make(f"fedagentgym/{name}-v0", **WORLDS[name], split="val").unwrapped
    assert other.pool is not envs[0].pool  # type: ignore[attr-defined]


def test_few_pools_are_held() -> None:
    first = open_env("fedagentgym/Guess-v0", seed=1000).pool
    for seed in range(MAX_POOLS):
        open_env("fedagentgym/Guess-v0", seed=1001 + seed)
    assert open_env("fedagentgym/Guess-v0", seed=1000).pool is not first


WRONG: tuple[dict[str, Any], ...] = (
    {"options": 5},
    {"options": {5: 1}},
    {"options": {"task": 5}},
    {"seed": -1},
    {"seed": "x"},
)


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_reset_refuses_in_one_sentence(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        make("Guess").unwrapped.reset(**given)


def test_make_refuses_in_one_sentence() -> None:
    split = fedagentgym.federate("fedagentgym/Guess-v0", partition="uniform", clients=3, tasks_per_client=5)
    for given in ({"client_split": 5, "client": 0}, {"client_split": split, "client": "x"}):
        with pytest.raises(OptionError):
            gymnasium.make("fedagentgym/Guess-v0", **given)  # type: ignore[arg-type]
