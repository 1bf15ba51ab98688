"""reasoning-gym's generators as one world: the library's own questions and verdicts, the promises of every world."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs import open_env
from fedagentgym.testing import check_env

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning_gym is not installed")

ID = "fedagentgym/ReasoningGym-v0"
SOME = ["chain_sum", "spell_backward", "leg_counting", "gcd", "countdown"]
WITHOUT_GOLD = {"graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    """The environment is registered when the bridge is imported."""
    importlib.import_module("fedagentgym.bridges.reasoning_gym")


def open_some(**options: Any) -> Any:
    return open_env(ID, **{"generators": SOME, "tasks_per_generator": 10, **options})


def test_it_keeps_every_promise() -> None:
    check_env(ID, generators=SOME, tasks_per_generator=10)


def test_every_generator_has_a_question_and_an_expert_who_is_right() -> None:
    from fedagentgym.bridges import reasoning_gym as bridge

    env = open_env(ID, tasks_per_generator=1)
    assert len(env.pool) == len(bridge.list_generators()) > 90
    episodes = env.reset_many(env.pool.ids, [0] * len(env.pool))
    ends = env.step_many(episodes, [env.expert().act(episode) for episode in episodes])
    assert {end.task.category for end in ends if not end.view.success} == WITHOUT_GOLD
    assert all(episode.view.observation for episode in episodes)
    nonsense = env.step_many(episodes, ["<answer>nonsense</answer>"] * len(episodes))
    assert not [end.task.category for end in nonsense if end.view.success]


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["0", "1", "-1", "True", "yes", "[]", "[0]", "{}", "None"])
def test_no_generator_is_solved_by_one_answer(answer: str) -> None:
    from fedagentgym.bridges import reasoning_gym as bridge

    for name in bridge.list_generators():
        problems = [bridge.Problem(name, 5, 12, place) for place in range(12)]
        assert {bridge.grade(problem, answer) for problem in problems} != {1.0}, name


def test_tasks_are_the_librarys_own() -> None:
    import reasoning_gym

    env = open_some()
    task = env.pool[7]
    name, seed, size, index = task.payload
    entry = reasoning_gym.create_dataset(name, seed=seed, size=size)[index]
    assert task.category == name == SOME[7 % 5] and index == 1
    assert env.reset_many([task], [0])[0].view.observation == entry["question"]
    assert env.split_sizes() == {"train": 50, "val": 10, "test": 10, "warmup": 25}
    whole = open_some(split="all").pool
    assert len(whole) == 95 and whole["reasoninggym/val/00003"].payload == open_some(split="val").pool[3].payload


@pytest.mark.slow
def test_tasks_are_the_same_in_every_process() -> None:
    code = (
        "import fedagentgym.bridges.reasoning_gym; from fedagentgym.envs import open_env;"
        f"e = open_env({ID!r}, tasks_per_generator=1);"
        "from fedagentgym.base.encoding import digest;"
        "print(e.pool.digest, digest([x.view.observation for x in e.reset_many(e.pool.ids, [0] * len(e.pool))]))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and "sha256" in said.pop()


def test_clients_differ_in_their_generators() -> None:
    split = fedagentgym.federate(
        ID,
        partition="preference",
        clients=5,
        tasks_per_client=10,
        omega=0.9,
        env={"generators": SOME, "tasks_per_generator": 20},
    )
    assert len({max(client.pool.categories, key=client.pool.categories.__getitem__) for client in split}) > 1


HOSTILE = [
    "__import__('os').system('true')",
    "(lambda: 1)()",
    "9**9**9**9",
    "1e999999999",
    "[" * 5000,
    "'" * 99,
    "exit()",
    "nan",
]


@pytest.mark.parametrize("answer", HOSTILE)
def test_no_answer_is_run_or_waited_for(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("an answer was run"))
    env = open_env(ID, tasks_per_generator=1)
    episodes = env.reset_many(env.pool.ids, [0] * len(env.pool))
    ends = env.step_many(episodes, [f"<answer>{answer}</answer>"] * len(episodes))
    assert not [end.task.category for end in ends if end.view.success]


def draw_names() -> st.SearchStrategy[str]:
    from fedagentgym.bridges.reasoning_gym import _HARMLESS

    return st.sampled_from([*_HARMLESS, "complex_arithmetic", "gcd"])


@given(name=st.deferred(draw_names), answer=st.text(max_size=60))
def test_any_text_is_a_score_between_0_and_1(name: str, answer: str) -> None:
    from fedagentgym.bridges import reasoning_gym as bridge

    assert 0.0 <= bridge.grade(bridge.Problem(name, 3, 4, 1), answer) <= 1.0


@pytest.mark.parametrize(
    ("generators", "said"),
    [(["chain_sums"], "chain_sum"), (["word_ladder"], "hash seed"), ("gcd", "a list of names"), ([], "list of names")],
)
def test_a_wrong_choice_is_one_sentence(generators: Any, said: str) -> None:
    with pytest.raises(FedAgentGymError, match=said):
        open_env(ID, generators=generators)
