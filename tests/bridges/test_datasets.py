"""A pool as a Hugging Face data set."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from fedagentgym.agents.text.prompts import Template
from fedagentgym.base.errors import OptionError
from fedagentgym.envs import open_env
from fedagentgym.envs.pool import TaskPool
from fedagentgym.partitions import federate

pytestmark = pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("fedagentgym/Guess-v0", {}),
        ("fedagentgym/WebShop-v0", {"size": "tiny"}),
        ("fedagentgym/Math-v0", {"size": "tiny"}),
        ("fedagentgym/Records-v0", {}),
        ("fedagentgym/QA-v0", {"tools": ["search"], "corpus": "all"}),
    ],
)
def test_a_pool_is_a_data_set_in_its_own_order(env_id: str, options: dict[str, str]) -> None:
    env = open_env(env_id, split="val", **options)
    pool = env.pool.subset(env.pool.ids[:20])
    rows = pool.to_dataset(seed=3)
    assert rows["task"] == pool.ids and rows["category"] == [task.category for task in pool]
    opened = env.reset_many(pool.ids, [3] * len(pool))
    assert rows["prompt"] == [episode.view.observation for episode in opened]
    template = Template("standard", think=True)
    chat = pool.to_dataset(template, chat=True)
    assert chat[1]["prompt"] == [{"role": "user", "content": template.render_first(env, opened[1].view)}]
    assert set(rows["env"]) == {env_id} and set(rows["seed"]) == {3}


def test_a_clients_data_set_is_its_own_variant_of_the_world() -> None:
    split = federate(
        "fedagentgym/Math-v0",
        partition="uniform",
        clients=3,
        tasks_per_client=4,
        env={"size": "tiny"},
        variant="wording",
    )
    shown = [client.open_env() for client in split]
    for client, env in zip(split, shown, strict=True):
        rows = env.pool.to_dataset(env=env)
        assert rows["task"] == list(client.tasks)
        assert rows["prompt"][0] == env.reset_many([client.tasks[0]], [0])[0].view.observation


def test_a_pool_made_by_hand_is_told_its_environment() -> None:
    env = open_env("fedagentgym/Guess-v0")
    record = {"category": "small", "payload": [10, 4]}
    pool = TaskPool.from_records([record], env=env.id)
    with pytest.raises(OptionError, match=r"to_dataset\(env="):
        pool.to_dataset()
    assert "between 1 and 10" in pool.to_dataset(env=env)[0]["prompt"]
