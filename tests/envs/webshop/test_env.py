"""The environment as its users meet it: gymnasium's interface, options, history, hidden answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

import fedagentgym
from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.make import open_env
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.webshop.env import ACCURACY, WebShopEnv
from fedagentgym.testing import check_env

assert fedagentgym


@pytest.mark.parametrize("options", [{}, {"observation": "html"}, {"num_prev_obs": 2, "num_prev_actions": 1}])
def test_conformance(options: dict[str, Any]) -> None:
    check_env("fedagentgym/WebShop-v0", size="tiny", **options)


def test_vector_environments() -> None:
    venv = gymnasium.make_vec("fedagentgym/WebShop-v0", num_envs=2, size="tiny")
    observations, infos = venv.reset(seed=3)
    assert len(observations) == 2 and infos["score"].dtype == float
    observations, rewards, _, _, infos = venv.step(("search[red dress]", "nonsense"))
    assert list(infos["valid"]) == [True, False] and rewards.tolist() == [0.0, 0.0]
    venv.close()


def test_the_target_with_all_options_earns_everything(tiny: WebShopEnv) -> None:
    task = tiny.pool[0]
    goal = task.payload
    (episode,) = tiny.reset_many([task], [1])
    for action in (
        f"search[<q> {goal.query}]",
        "FIND",
        *(f"click[{value}]" for value in goal.options.values()),
        "click[buy now]",
    ):
        while action == "FIND" and goal.asin.lower() not in episode.view.extra["clickables"]:
            (episode,) = tiny.step_many([episode], ["click[next >]"])
        (episode,) = tiny.step_many([episode], [action.replace("FIND", f"click[{goal.asin.lower()}]")])
    assert (episode.view.score, episode.view.success, episode.terminated, episode.reward) == (1.0, True, True, 1.0)
    assert episode.view.rewards == {ACCURACY: 1.0}
    assert episode.view.extra["details"]["r_option"] == 1.0


def test_history_is_joined_as_in_the_original(tiny: WebShopEnv) -> None:
    plain = [tiny.reset(seed=1)[0]]
    actions = ["search[red dress]", "click[next >]", "click[nothing]", "click[back to search]"]
    plain += [tiny.step(action)[0] for action in actions]
    env = open_env(WebShopEnv, size="tiny", num_prev_obs=2, num_prev_actions=1)
    shown = [env.reset(seed=1)[0], *(env.step(action)[0] for action in actions)]
    sep = " [SEP] "
    assert shown[0] == plain[0]
    assert shown[1] == sep.join([plain[0], actions[0], plain[1]])
    assert shown[2] == sep.join([plain[0], plain[1], actions[1], plain[2]])
    assert shown[4] == sep.join([plain[2], plain[3], actions[3], plain[4]])


def test_the_goal_in_one_line_is_the_instruction_even_of_a_task_without_answer(tiny: WebShopEnv) -> None:
    for task in (tiny.pool[0], tiny.pool.without_answers(tiny.pool.ids[:1])[0]):
        goal = tiny.goal(task)
        assert goal == task.payload.instruction and goal in tiny.begin(task, 0)[1].observation


def test_success10(tiny: WebShopEnv) -> None:
    env = open_env(WebShopEnv, size="tiny", reward="success10")
    expert_rewards = set()
    for number in range(12):
        (episode,), expert = env.reset_many([env.pool[number].id], [0]), env.expert()
        while not episode.over:
            (episode,) = env.step_many([episode], [expert.act(episode)])
        assert episode.reward == (10.0 if episode.view.success else 0.0)
        expert_rewards.add(episode.reward)
    assert 10.0 in expert_rewards


def test_whoever_does_not_know_the_answer_learns_nothing_of_it(tiny: WebShopEnv) -> None:
    identifier = tiny.pool.ids[3]
    hidden = tiny.pool.without_answers([identifier])
    goal = hidden[0].payload
    assert goal.instruction == tiny.pool[identifier].payload.instruction
    assert (goal.asin, goal.attributes, goal.options, goal.name, goal.query, goal.known) == ("", (), (), "", "", False)
    env = open_env(WebShopEnv, size="tiny", pool=hidden)
    env.reset(seed=0)
    actions = ["search[color size]", "OPEN", "click[buy now]"]
    for action in actions:
        link = next((v for v in env.episode.view.extra["clickables"] if v.startswith("b0")), "")
        observation, reward, *_, info = env.step(action.replace("OPEN", f"click[{link}]"))
    assert (reward, info["score"], info["success"], info["rewards"]) == (0.0, 0.0, False, {ACCURACY: 0.0})
    assert "details" not in info and "[SEP] 0.0 [SEP]" in observation


def test_start_page_offers_a_search_and_later_pages_offer_clicks(tiny: WebShopEnv) -> None:
    _, info = tiny.reset(seed=0)
    assert info["admissible"] == ["search[<query>]"] and info["has_search_bar"] and info["clickables"] == ("search",)
    info = tiny.step("search[color size]")[-1]
    assert "click[back to search]" in info["admissible"] and not info["has_search_bar"]
    assert info["instruction"] == tiny.episode.task.payload.instruction


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "huge"}, "unknown size 'huge': known are default, tiny"),
        ({"goals": "robot"}, "unknown goals"),
        ({"goals": "human"}, "items_human_ins"),
        ({"goal_order": "x"}, "unknown goal_order"),
        ({"observation": "pdf"}, "unknown observation"),
        ({"products": 0}, "products must be at least 1"),
        ({"products": "many"}, "option 'products': it must be a whole number"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 1.5}, "option 'seed': it must be a whole number"),
        ({"num_prev_obs": -1}, "num_prev_obs"),
        ({"data": "/nowhere"}, "there is no folder"),
        ({"split": "dev"}, "unknown split"),
        ({"variant": {"kind": "x"}}, "unknown variant of fedagentgym/WebShop-v0"),
        ({"products": 3}, "'train' is empty"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedAgentGymError, match=message):
        open_env(WebShopEnv, **options)


def test_data_and_a_generated_size_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(FedAgentGymError, match="for generated shops"):
        open_env(WebShopEnv, data=str(tmp_path), size="tiny")


def test_a_pool_of_something_else_is_refused() -> None:
    pool = TaskPool.from_records([{"category": "x", "payload": 1}], env=WebShopEnv.id)
    env = open_env(WebShopEnv, size="tiny", pool=pool)
    with pytest.raises(FedAgentGymError, match="carries no shopping goal"):
        env.reset(seed=0)


def test_pools_of_equal_options_have_equal_digests(tiny: WebShopEnv, webshop_data: Path) -> None:
    assert tiny.pool.digest == open_env(WebShopEnv, size="tiny").pool.digest
    assert tiny.pool.digest != open_env(WebShopEnv, size="tiny", seed=1).pool.digest
    assert tiny.pool.digest != open_env(WebShopEnv, size="tiny", goal_order="fedagent").pool.digest
    loaded = open_env(WebShopEnv, data=str(webshop_data)).pool
    assert str(webshop_data) not in str(loaded.source)


def test_the_vocabulary_covers_what_is_shown(tiny: WebShopEnv) -> None:
    import re

    known = {word for text in tiny.vocabulary() for word in re.findall(r"[^\W_]+", text)}
    (episode,) = tiny.reset_many([tiny.pool[0]], [0])
    for action in ("search[color size]", "click[next >]"):
        (episode,) = tiny.step_many([episode], [action])
        shown = re.findall(r"[^\W_]+", episode.view.observation + " " + " ".join(episode.view.admissible or ()))
        assert {word for word in shown if not word.isdigit() and len(word) > 1} <= known


def test_a_goal_of_another_shop_is_refused(tiny: WebShopEnv) -> None:
    env = open_env(WebShopEnv, size="tiny", seed=8, pool=tiny.pool)
    with pytest.raises(FedAgentGymError, match="made for another shop"):
        env.reset(seed=0)
    with pytest.raises(FedAgentGymError, match="made for another shop"):
        open_env(
            WebShopEnv, size="tiny", seed=8, pool=tiny.pool, variant={"kind": "lookalikes", "attack": "price"}
        ).reset(seed=0)
