"""The scripted shopper: what it reads, how well it buys, and that it finds its way when another player acts in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.base.streams import stream
from fedagentgym.envs.make import open_env
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.expert import read_instruction


def shop(env: WebShopEnv, tasks: int, noise: float = 0.0) -> tuple[float, float, float]:
    """Mean score, success rate, share of episodes that ended with a purchase."""
    draw, scores, solved, bought = stream(0, "shopper"), 0.0, 0, 0
    for number in range(tasks):
        identifier = env.pool.ids[draw.integers(len(env.pool))]
        (episode,), expert = env.reset_many([identifier], [number]), env.expert()
        while not episode.over:
            action = expert.act(episode)
            assert noise or action.startswith(("search[", "click["))
            if draw.uniform() < noise and episode.view.admissible:
                action = draw.pick(episode.view.admissible).replace("<query>", "red size")
            (episode,) = env.step_many([episode], [action])
            assert noise or episode.view.valid, action
        scores += episode.view.score
        solved += episode.view.success
        bought += episode.terminated
    return scores / tasks, solved / tasks, bought / tasks


def test_generated_goals(tiny: WebShopEnv, default: WebShopEnv) -> None:
    score, solved, bought = shop(tiny, 80)
    assert score > 0.95 and solved > 0.85 and bought == 1.0
    score, solved, bought = shop(default, 120)
    assert score > 0.88 and solved > 0.7 and bought == 1.0


def test_real_goals(webshop_data: Path) -> None:
    score, solved, bought = shop(open_env(WebShopEnv, data=str(webshop_data)), 120)
    assert score > 0.82 and solved > 0.65 and bought == 1.0


def test_goals_that_people_wrote(webshop_data: Path) -> None:
    env = open_env(WebShopEnv, data=str(webshop_data), goals="human", split="test")
    assert shop(env, 13)[0] > 0.75


@pytest.mark.parametrize("mode", ["text", "url", "html"])
def test_the_shopper_does_not_depend_on_how_pages_are_shown(mode: str, tiny: WebShopEnv) -> None:
    assert shop(open_env(WebShopEnv, size="tiny", observation=mode), 20) == shop(tiny, 20)


def test_with_every_third_action_random_it_still_buys_well_sometimes(tiny: WebShopEnv) -> None:
    score, solved, _ = shop(tiny, 100, noise=0.3)
    assert 0.2 < solved < 0.8 and score > 0.4


def test_it_does_not_know_the_goal(tiny: WebShopEnv) -> None:
    """Its actions are the same when everything but the instruction is hidden."""
    for identifier in tiny.pool.ids[:10]:
        hidden = tiny.pool.without_answers([identifier])
        runs = []
        for task in (tiny.pool[identifier], hidden[0]):
            (episode,), expert = tiny.reset_many([task], [0]), tiny.expert()
            actions = []
            while not episode.over:
                actions.append(expert.act(episode))
                (episode,) = tiny.step_many([episode], [actions[-1]])
            runs.append(actions)
        assert runs[0] == runs[1]


def test_instructions_are_taken_apart() -> None:
    wish = read_instruction(
        "Find me living room rugs with soft pile with color: navy, and size: 2 ft x 3 ft, and price lower than 9.00 dollars"
    )
    assert (wish.cap, wish.options) == (9.0, (("color", "navy"), ("size", "2 ft x 3 ft")))
    assert wish.text == "Find me living room rugs with soft pile"
    plain = read_instruction("i need a lamp")
    assert (plain.cap, plain.options, plain.words) == (float("inf"), (), frozenset({"lamp"}))
    assert read_instruction("").words == frozenset()
