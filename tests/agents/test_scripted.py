"""Agents without a model, and the door through which all agents are made."""

from __future__ import annotations

from typing import Any

import pytest

from fedagentgym.agents import AGENTS
from fedagentgym.agents.players.human import HumanAgent, HumanQuitError
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import OptionError, UnknownNameError
from fedagentgym.base.streams import stream
from fedagentgym.envs.make import open_env
from fedagentgym.envs.scripted import random_action

from .test_agent import play
from .worlds import AskEnv, ShopEnv

SHOP = open_env(ShopEnv)


def success(agent: Any, count: int = 60) -> float:
    won = 0
    for moves in play(SHOP, agent.play(SHOP), count):
        won += moves[-1].action == "click[buy now]" and len(moves) == 2
    return won / count


def test_the_expert_wins_and_its_handicap_shows() -> None:
    assert success(make_agent("expert")) == 1.0
    weak = success(make_agent({"name": "expert", "options": {"noise": 0.6}}))
    assert 0.0 < weak < 0.9
    assert success(make_agent({"name": "expert", "options": {"noise": 1.0}})) < weak


def test_random_actions_are_admissible_and_their_slots_filled() -> None:
    episode = SHOP.reset_many([SHOP.pool.ids[0]], [0])[0]
    source = stream(1)
    seen = {random_action(episode, episode.view.observation, source) for _ in range(60)}
    words = {"Find", "me", "red", "shoes", "please"}
    assert len(seen) > 20
    for action in seen:
        assert action.startswith("search[") and set(action[7:-1].split()) <= words
    ask = open_env(AskEnv)
    asked = ask.reset_many([ask.pool.ids[0]], [0])[0]
    assert random_action(asked, "Say red.", source) in ("<answer>Say</answer>", "<answer>red</answer>")
    assert random_action(asked, "What is 2 + 31 ?", source) in ("<answer>2</answer>", "<answer>31</answer>")
    assert random_action(asked, "", source) == "<answer>a</answer>"


def test_random_play_is_seeded() -> None:
    agent = make_agent("random")
    assert play(SHOP, agent.play(SHOP)) == play(SHOP, agent.play(SHOP))


def test_a_person_types_actions_or_their_numbers() -> None:
    typed = iter(["search[red shoes]", "1", "click[buy now]"])
    asked: list[str] = []

    def ask(text: str) -> str:
        asked.append(text)
        return next(typed)

    moves = play(SHOP, HumanAgent(ask=ask).play(SHOP), count=1)[0]
    assert [move.action for move in moves] == ["search[red shoes]", "click[buy now]"]
    assert SHOP.role in asked[0] and SHOP.role not in asked[1]
    assert "  2  click[< prev]" in asked[1]


@pytest.mark.parametrize("typed", ["9" * 5000, "0" * 5000, "0", "-1", "²"])
def test_a_number_that_is_in_no_list_is_an_action(typed: str) -> None:
    moves = play(SHOP, HumanAgent(ask=lambda text: typed).play(SHOP), count=1)[0]
    assert {move.action for move in moves} == {typed}


def test_a_person_may_leave() -> None:
    def ask(text: str) -> str:
        raise EOFError

    with pytest.raises(HumanQuitError, match="no more input"):
        play(SHOP, HumanAgent(ask=ask).play(SHOP), count=1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "expert", "options": {"nose": 0.1}}, "did you mean 'noise'"),
        ({"name": "expert", "options": {"noise": 2}}, "options.noise"),
        ({"name": "random", "options": {"noise": 0.1}}, "options.noise"),
        ({"name": "random", "contxt": "window"}, "did you mean 'context'"),
        ({"name": "random", "decoding": {"temperature": -1}}, "decoding.temperature"),
        ({"name": "tiny"}, "belongs to an environment"),
        ({"name": "transformers"}, "needs a model"),
        ({"name": "endpoint"}, "needs a model"),
    ],
)
def test_wrong_settings_are_one_clear_sentence(data: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make_agent(data)


def test_unknown_agents_get_a_guess() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'random'"):
        make_agent("randon")


def test_every_registered_agent_resolves() -> None:
    for name in AGENTS.names():
        assert callable(AGENTS.get(name)), name


def test_a_registered_agent_is_made_by_name() -> None:
    made = HumanAgent("mine", ask=lambda text: "")

    def factory(settings: AgentSettings, *, env: Any = None, seed: int = 0) -> HumanAgent:
        return made

    AGENTS.register("test-only", factory)
    assert make_agent("test-only") is made
