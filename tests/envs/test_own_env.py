"""An environment of three methods, in a file outside the package, can be made, checked, divided, trained and evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import fedagentgym
from fedagentgym.base.errors import OptionError
from fedagentgym.base.imports import load_plugins
from fedagentgym.cli.main import main
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.scripted import list_words
from fedagentgym.envs.view import View
from fedagentgym.testing import check_agent, check_env

PLUGIN = '''"""Walk to the lamp."""

import fedagentgym
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.view import View
from fedagentgym.envs.scripted import list_words


class LampEnv(TextEnv):
    """Walk along a corridor of ten places to the one with the lamp."""

    id = "me/Lamp-v0"
    role = "You are walking along a corridor."
    action_help = "left, right: go one place."
    default_max_turns = 12

    def load_pool(self, split):
        goals = [1 + stream(0, "corridor", split, index).integers(3) for index in range(40)]
        tasks = [{"category": f"lamp {goal}", "payload": goal} for goal in goals]
        return TaskPool.from_records(tasks, env=self.id, split=split)

    def begin(self, task, seed):
        return (0, task.payload), View(observation="You are at place 0.", admissible=("left", "right"))

    def advance(self, state, action):
        place, goal = state
        place = min(max(place + {"left": -1, "right": 1}.get(action, 0), 0), 9)
        won = place == goal
        known = action in ("left", "right")
        view = View(observation=f"You are at place {place}.", admissible=("left", "right"), reward=float(won),
                    score=float(won), success=won, done=won, valid=known)
        return (place, goal), view


fedagentgym.register_env("me/Lamp-v0", LampEnv, replace=True)
'''


@pytest.fixture
def lamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "lamp.py"
    file.write_text(PLUGIN)
    assert len(PLUGIN.splitlines()) <= 40
    load_plugins([str(file)])
    return file


def test_it_is_made_checked_and_divided(lamp: Path) -> None:
    env = gym.make("me/Lamp-v0")
    assert env.reset(seed=0)[0] == "You are at place 0."
    with pytest.warns(UserWarning, match="me/Lamp-v0 has no expert"):
        check_env("me/Lamp-v0")
    client_split = fedagentgym.federate("me/Lamp-v0", partition="preference", clients=3, tasks_per_client=8, omega=0.9)
    assert [len(client_split.client(number)) for number in range(3)] == [8, 8, 8]


def test_its_words_are_those_that_random_play_meets(lamp: Path) -> None:
    env = open_env("me/Lamp-v0")
    words = list(list_words(env))
    assert {"left", "right", "You", "place", "walking", "2."} <= set(words)
    assert words == list(list_words(env)) and list(env.vocabulary()) == []


def test_it_is_trained_and_judged(lamp: Path, tmp_path: Path) -> None:
    result = fedagentgym.train(
        {
            "name": "lamp",
            "plugins": [str(lamp)],
            "env": {"id": "me/Lamp-v0"},
            "agent": "untrained-tiny",
            "partition": {"clients": 3, "tasks_per_client": 8},
            "learning": {"tasks_per_step": 2, "group_size": 4, "learning_rate": 3e-3},
            "federation": {"rounds": 2, "clients_per_round": 2},
            "algorithm": "fedagent",
            "evaluation": {"every": 1, "tasks": 8},
            "output": {"folder": str(tmp_path / "run")},
        }
    )
    assert result.record["rounds"] == 2 and result.record["final"]["round"] == 2
    assert (tmp_path / "run" / "report.html").is_file()


def test_eval_plays_it_and_what_needs_an_expert_says_so(lamp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--env", "me/Lamp-v0", "--tasks", "10", "--plugin", str(lamp))
    assert main(["eval", *own, "--agent", "random", "--split", "test"]) == 0
    capsys.readouterr()
    assert main(["eval", *own, "--agent", "expert"]) == 2
    told = capsys.readouterr().err
    assert "me/Lamp-v0 has no expert" in told and told.count("\n") == 1


def test_a_missing_method_or_attribute_is_named() -> None:
    class NoMethods(TextEnv):
        """Nothing."""

        id, role, action_help = "me/No-v0", "", ""

    class NoRole(TextEnv):
        """Nothing."""

        id = "me/No-v0"

    with pytest.raises(OptionError, match=r"NoMethods does not define load_pool\(split\)"):
        open_env(NoMethods)
    with pytest.raises(OptionError, match="NoRole needs a class attribute 'role', a text"):
        open_env(NoRole)


def test_an_agent_of_ones_own_plays_it(lamp: Path) -> None:
    seen: list[list[dict[str, str]]] = []

    class Walker(fedagentgym.Agent):
        def reply(self, observation: str, info: dict[str, Any]) -> str:
            seen.append(info["messages"])
            return "right"

    env = gym.make("me/Lamp-v0", split="test").unwrapped
    assert isinstance(env, TextEnv)
    found = fedagentgym.evaluate(Walker(), env)
    assert found.overall["success"].mean == 1.0
    assert [message["role"] for message in seen[-1]][:1] == ["user"] and "You are walking" in seen[0][0]["content"]
    check_agent(Walker(), env="me/Lamp-v0")
    assert View(observation="").done is False


REPORT = {"reward": 2.5, "score": 0.5, "success": False}


def test_a_report_of_finite_numbers_ends_the_episode_of_a_program() -> None:
    env = open_env("fedagentgym/Own-v0")
    for change in ({}, {"reward": -3}, {"score": 1, "success": True}):
        env.reset(seed=0)
        report = {**REPORT, **change}
        _, reward, terminated, _, info = env.step(json.dumps(report))
        assert (reward, terminated, info["score"], info["valid"]) == (report["reward"], True, report["score"], True)


@pytest.mark.parametrize(
    "change",
    [
        *({key: value} for key in ("reward", "score") for value in ("inf", "nan", "0.5", None, True, [0.5], 10**400)),
        *({"reward": value} for value in (float("inf"), float("nan"), -(10**400))),
        {"score": 1.5},
        {"success": 1},
    ],
    ids=lambda change: f"{change}"[:30],
)
def test_a_report_of_anything_else_is_not_understood(change: dict[str, Any]) -> None:
    env = open_env("fedagentgym/Own-v0")
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(json.dumps({**REPORT, **change}))
    assert (reward, terminated, info["score"], info["valid"]) == (0.0, False, 0.0, False)
