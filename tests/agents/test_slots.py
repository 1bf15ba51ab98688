"""Slots take words of the task: what else stands on a page (titles, buttons, separators) is never searched for."""

from __future__ import annotations

from typing import Any

import pytest

from fedagentgym.agents.agent import TokenAgent
from fedagentgym.agents.model.loading import make_tiny_model
from fedagentgym.agents.model.policy import TorchPolicy
from fedagentgym.agents.players.scripted import Demonstrator
from fedagentgym.agents.presets import make_agent
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.text.prompts import Template
from fedagentgym.envs import open_env
from fedagentgym.envs.scripted import get_slot_text, slot_words
from fedagentgym.learning import collect

from .models import sharpened
from .worlds import ShopEnv

WEBSHOP = open_env("fedagentgym/WebShop-v0", size="tiny", split="val")


def make_token_agent(template: Template) -> TokenAgent:
    model, tokenizer = make_tiny_model(WEBSHOP.vocabulary(), context_length=2048)
    policy = TorchPolicy(sharpened(model), tokenizer)
    return TokenAgent("mine", policy, template, Decoding(max_new_tokens=48, constrained=True), "window", 0)


def list_searches(player: Any) -> list[tuple[str, list[str]]]:
    """Goal and query words of every search that a player made in the shop."""
    played = collect(player, WEBSHOP, WEBSHOP.pool.ids[:12], seed=3, parallel=12).trajectories
    goals = {task.id: WEBSHOP.goal(task) for task in WEBSHOP.pool}
    return [
        (goals[one.task], turn.action[len("search[") : -1].split())
        for one in played
        for turn in one.turns
        if turn.action.startswith("search[")
    ]


@pytest.mark.parametrize("who", ["random", "constrained, standard", "constrained, compact", "demonstrated with noise"])
def test_no_player_searches_for_what_the_page_is_made_of(who: str) -> None:
    player: Any = make_agent("random")
    if who != "random":
        player = make_token_agent(Template("standard" if who.endswith("standard") else "compact", think=False))
    if who.startswith("demonstrated"):
        player = Demonstrator(player, noise=1.0)
    found = list_searches(player)
    assert len(found) >= 12
    for goal, words in found:
        assert set(words) <= set(slot_words(goal)), (goal, words)


def test_a_world_without_goals_lends_the_words_of_its_first_observation() -> None:
    shop = open_env(ShopEnv)
    episode = shop.reset_many([shop.pool.ids[0]], [0])[0]
    assert get_slot_text(shop, episode) == episode.view.observation
