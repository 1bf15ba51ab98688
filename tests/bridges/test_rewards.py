"""Rewards by task id, as trainers that generate themselves ask for them."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedagentgym
from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.errors import DataError, OptionError, UnknownNameError
from fedagentgym.bridges.rewards import make_reward
from fedagentgym.envs.make import open_env

SINGLE = ["Math", "QA", "Code", "Skills"]


def play_expert(env: Any, task: str) -> str:
    (episode,) = env.reset_many([task], [0])
    return str(env.expert().act(episode))


@pytest.mark.parametrize("name", SINGLE)
def test_a_reply_is_rewarded_as_the_environment_does(name: str) -> None:
    reward = make_reward(name.lower(), split="val")
    tasks = [*reward.env.pool.ids[:3]]
    right = [play_expert(reward.env, task) for task in tasks]
    asked = {"completions": [*right, "no idea"], "task": [*tasks, tasks[0]], "prompts": [""] * 4, "category": [""] * 4}
    assert reward(**asked) == [1.0, 1.0, 1.0, 0.0]
    said = [[{"role": "assistant", "content": reply}] for reply in right]
    assert reward(completions=said, task=tasks, seed=[3, 4, 5]) == [1.0] * 3
    assert reward.compute_score("x", right[0], tasks[0], {"seed": 2}) == 1.0
    assert (
        reward.__name__ == reward.env.id and pickle.loads(pickle.dumps(reward)).compute_score("", "", tasks[0]) == 0.0
    )


def test_a_reply_in_parts_is_their_texts_joined() -> None:
    reward = make_reward("skills")
    task = reward.env.pool.ids[0]
    reply = play_expert(reward.env, task)
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": reply[:9]},
        {"type": "image", "image": "x"},
        {"type": "text", "text": reply[9:]},
    ]
    said = [
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": content}] for content in (parts, parts[:1])
    ]
    assert reward(completions=said, task=[task] * 2) == [1.0, 0.0]
    assert reward(completions=[[{"content": [{"text": reply}]}]], task=[task]) == [1.0]


@given(replies=st.lists(st.text(max_size=40) | st.from_regex(r"<answer> ?-?[0-9]{1,3} ?</answer>"), max_size=5))
def test_rewards_equal_those_of_the_environment_played_by_gymnasium(replies: list[str]) -> None:
    env = gymnasium.make("fedagentgym/Skills-v0")
    reward = make_reward(env)
    task = reward.env.pool.ids[7]
    expected = []
    for reply in replies:
        env.reset(seed=1, options={"task": task})
        expected.append(float(env.step(reply)[1]))
    assert reward(completions=replies, task=[task] * len(replies), seed=[1] * len(replies)) == expected


def test_clients_and_splits() -> None:
    split = fedagentgym.federate("fedagentgym/Math-v0", clients=3, tasks_per_client=5)
    client = make_reward(split[1])
    assert tuple(client.env.pool.ids) == split[1].tasks
    whole = make_reward(split)
    assert whole.env.pool.digest == split.pool.digest
    task = split[2].tasks[0]
    assert whole(completions=[play_expert(whole.env, task)], task=[task]) == [1.0]
    with pytest.raises(UnknownNameError, match="task"):
        client(completions=["x"], task=[next(one for one in split[2].tasks if one not in split[1].tasks)])


def test_rows_for_verl_hold_no_answer() -> None:
    reward = make_reward("fedagentgym/Math-v0", split="val")
    rows = reward.make_verl_rows(Template("standard", think=False))
    assert len(rows) == len(reward.env.pool)
    first = rows[0]
    assert first["reward_model"] == {"style": "rule", "ground_truth": reward.env.pool.ids[0]}
    (episode,) = reward.env.reset_many([reward.env.pool.ids[0]], [0])
    assert first["prompt"][0]["content"].endswith(episode.view.observation) or episode.view.observation in str(
        first["prompt"]
    )


@pytest.mark.parametrize("given", [None, 3, [], object(), 1.5])
def test_what_is_no_environment_is_one_sentence(given: Any) -> None:
    with pytest.raises(OptionError, match="an environment must be an id"):
        make_reward(given)


def test_what_needs_more_than_one_reply_or_a_task_is_refused() -> None:
    for name, options in (("guess", {}), ("math", {"tools": ["calc"]})):
        with pytest.raises(OptionError, match="one reply"):
            make_reward(name, **options)
    with pytest.raises(OptionError, match="can be given only with the id"):
        make_reward(open_env("fedagentgym/Skills-v0"), split="val")
    reward = make_reward("skills")
    with pytest.raises(DataError, match="column 'task'"):
        reward(completions=["1"])
    parts: list[Any] = [
        [],
        [{"type": "text"}],
        [{"type": "text", "text": 3}],
        [{"type": "image", "image": "x"}],
        ["x"],
        b"x",
        {"a": 1},
    ]
    for broken in (3, [], [{"role": "assistant"}], None, *([{"content": content}] for content in parts)):
        with pytest.raises(DataError, match="a completion must be"):
            reward(completions=[broken], task=[reward.env.pool.ids[0]])
    with pytest.raises(UnknownNameError):
        make_reward("nowhere")
