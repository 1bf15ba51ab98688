"""Public functions take an environment and an agent in every form, and refuse anything else in one sentence of their own."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import fedagentgym
from fedagentgym import envs, learning, testing
from fedagentgym.agents import make_agent
from fedagentgym.errors import FedAgentGymError

GUESS = "fedagentgym/Guess-v0"
FORMS: dict[str, Callable[[], Any]] = {
    "id": lambda: GUESS,
    "short name": lambda: "guess",
    "wrapped": lambda: gymnasium.make(GUESS),
    "more wrapped": lambda: envs.ShowPrompt(gymnasium.make(GUESS)),
    "instance": lambda: envs.open_env(GUESS),
    "client": lambda: fedagentgym.federate(GUESS, clients=2)[1],
}
PLAYED = "guess/train/00001"


def train(env: Any) -> Any:
    return fedagentgym.load_config({"env": {"id": env}, "partition": {"clients": 2}}).env.id


TAKE_ENV: dict[str, Callable[[Any], Any]] = {
    "open_env": envs.open_env,
    "evaluate": lambda env: fedagentgym.evaluate("expert", env, tasks=2),
    "collect": lambda env: fedagentgym.collect("random", env, [envs.open_env(env).pool.ids[0]]),
    "replay": lambda env: envs.replay(env, envs.open_env(env).pool.ids[0], 0, ["guess 4"]),
    "make_agent": lambda env: make_agent("tiny", env),
    "digest_episode": testing.digest_episode,
    "play_steps": lambda env: testing.play_steps(env, 3),
    "measure_beliefs": lambda env: learning.measure_beliefs(env, []),
    "federate": lambda env: fedagentgym.federate(env if isinstance(env, str) else envs.open_env(env), clients=2),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TAKE_ENV)
def test_an_environment_in_every_form(name: str, form: str) -> None:
    if (name, form) == ("federate", "client"):
        with pytest.raises(FedAgentGymError, match=r"all tasks of its pool, and this one plays 300 of 600"):
            TAKE_ENV[name](FORMS[form]())
        return
    TAKE_ENV[name](FORMS[form]())


def test_other_functions_with_names_and_wrapped_environments() -> None:
    assert train("guess") == train(GUESS) == GUESS
    testing.check_env("Guess")
    testing.check_env(gymnasium.make(GUESS))
    trl = importlib.import_module("fedagentgym.bridges.trl")
    rewards = importlib.import_module("fedagentgym.bridges.rewards")
    task = "math/train/00000"
    for env in ("math", gymnasium.make("fedagentgym/Math-v0")):
        assert rewards.make_reward(env).env.id == "fedagentgym/Math-v0"
        assert len(trl.make_task_rows(env, [task])) == len(trl.make_tool_rows(env, [task])) == 1
    whole = fedagentgym.federate(gymnasium.make("fedagentgym/Math-v0", size="tiny"), clients=2)
    assert whole.record.env_options == {"size": "tiny"}
    pool = envs.open_env(GUESS).pool.subset([PLAYED])
    assert fedagentgym.federate(envs.open_env(GUESS, pool=pool), clients=1)[0].tasks == (PLAYED,)


@pytest.mark.parametrize("wrong", [None, 3, [], "nothing-like-it", object()])
@pytest.mark.parametrize("name", TAKE_ENV)
def test_what_is_no_environment_is_refused(name: str, wrong: Any) -> None:
    if name == "make_agent" and wrong is None:
        return
    with pytest.raises(FedAgentGymError) as caught:
        TAKE_ENV[name](wrong)
    assert "\n" not in str(caught.value)


class Four(fedagentgym.Agent):
    def reply(self, observation: str, info: dict[str, Any]) -> str:
        return "guess 4"


@pytest.mark.parametrize("agent", ["expert", {"name": "random"}, "instance", "own"])
def test_an_agent_in_every_form(agent: Any) -> None:
    made = {"instance": make_agent("expert"), "own": Four()}
    found = fedagentgym.evaluate(made.get(agent, agent) if isinstance(agent, str) else agent, "Guess", {"tasks": 2})
    assert found.tasks == 2


@pytest.mark.parametrize("wrong", [None, 3, [], "nothing-like-it"])
def test_what_is_no_agent_and_no_setting_is_refused(wrong: Any) -> None:
    for call in (
        lambda: fedagentgym.evaluate(wrong, "guess"),
        lambda: fedagentgym.collect(wrong, "guess", [PLAYED]),
        lambda: make_agent(wrong),
        lambda: fedagentgym.evaluate("expert", "guess", {"tasks": "many"}),
        lambda: fedagentgym.evaluate("expert", "guess", wrong or 3),
        lambda: fedagentgym.evaluate("expert", "guess", nothing_like_it=wrong),
    ):
        with pytest.raises(FedAgentGymError) as caught:
            call()
        assert "\n" not in str(caught.value)


PACKAGES = (
    "",
    ".envs",
    ".partitions",
    ".agents",
    ".learning",
    ".federation",
    ".algorithms",
    ".leaderboard",
    ".testing",
)


BRIDGES = tuple(
    f".bridges.{one.name}" for one in pkgutil.iter_modules(importlib.import_module("fedagentgym.bridges").__path__)
)


def list_functions() -> Iterator[Any]:
    for package in (*PACKAGES, *BRIDGES):
        try:
            module = importlib.import_module(f"fedagentgym{package}")
        except (ImportError, FedAgentGymError):  # of a library that is not here
            continue
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) and found.__module__.startswith("fedagentgym"):
                yield pytest.param(found, id=f"{package or 'fedagentgym'}.{name}".lstrip("."))


VALUES_OF = {
    "calculate",
    "freeze",
    "add_gradient",
    "stream",
    "format_transcript",
    "format_episode",
    "run_rounds",
    "aggregate",
}
"""Functions whose arguments are values that other functions return, not names or settings."""


@pytest.mark.parametrize("wrong", [None, 3, [], "nothing-like-it"])
@pytest.mark.parametrize("function", list(list_functions()))
def test_a_first_argument_of_a_wrong_type_is_one_sentence(function: Any, wrong: Any) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    if function.__name__ in VALUES_OF or not parameters:
        return
    others = [
        parameter
        for parameter in parameters[1:]
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    try:
        named = {one.name: "nothing-like-it" for one in others if one.kind is one.KEYWORD_ONLY}
        outcome = function(wrong, *(["nothing-like-it"] * (len(others) - len(named))), **named)
        list(outcome) if inspect.isgenerator(outcome) else None
    except FedAgentGymError as error:
        assert "\n" not in str(error)
    except AssertionError as error:  # how the functions of `testing` say what is wrong
        assert function.__name__.startswith("check_") and "\n" not in str(error)


METHODS = {
    "ClientSplit": lambda: fedagentgym.federate("guess", clients=2),
    "Client": lambda: fedagentgym.federate("guess", clients=2)[1],
    "TaskPool": lambda: envs.open_env("guess").pool,
    "RunResult": lambda: fedagentgym.RunResult(Path("nothing"), {"name": "a", "final": {"digest": "sha256:0"}}),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_first_argument_of_a_wrong_type_to_a_method_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made, called = METHODS[name](), 0
    for method in ("__getitem__", *(one for one in dir(type(made)) if not one.startswith("_"))):
        found = getattr(type(made), method, None)
        if not inspect.isfunction(found):
            continue
        kinds = [parameter.kind for parameter in inspect.signature(found).parameters.values()]
        if kinds[1:2] != [inspect.Parameter.POSITIONAL_OR_KEYWORD]:
            continue
        for wrong in (3.5, [], {}, object()):
            called += 1
            try:
                found(made, wrong)
            except FedAgentGymError as error:
                assert "\n" not in str(error)
    assert called >= 4
