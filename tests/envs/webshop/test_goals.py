"""Goals: the original's lists, splits under canonical names, weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.make import open_env
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.stock import ShopChoice, compute_split_ranges, open_shop_data


def as_original(goal: Goal) -> dict[str, Any]:
    return {
        "asin": goal.asin,
        "category": goal.category,
        "query": goal.query,
        "name": goal.name,
        "product_category": goal.product_category,
        "instruction_text": goal.instruction,
        "attributes": list(goal.attributes),
        "price_upper": goal.price_upper,
        "goal_options": dict(goal.options) if isinstance(goal.options, dict) else list(goal.options),
        "weight": goal.weight,
    }


def test_synthetic_goals_are_the_originals(real: WebShopEnv, parity: Callable[[str], Any]) -> None:
    expected = parity("goals_seed42")
    goals = real.stock.goals
    assert len(goals) == expected["count"] == 6910
    assert [as_original(goal) for goal in goals[:200]] == expected["first_200_synthetic"]
    prices = {real.stock.catalogue.head(row).asin: float(goals.prices[row]) for row in range(1000)}
    assert prices == expected["product_prices"]
    counted = Counter(real.stock.catalogue.category_names[code] for code in goals.category_codes)
    assert counted == {"fashion": 5409, "garden": 968, "beauty": 214, "electronics": 198, "grocery": 121}


def test_goals_of_every_transcript_are_the_originals(webshop_data: Path, parity: Callable[[str], Any]) -> None:
    stocks = {kind: open_shop_data(ShopChoice(str(webshop_data), goals=kind)) for kind in ("synthetic", "human")}
    for record in parity("transcripts")["transcripts"]:
        goal = stocks[record["goal_kind"]].goals[record["goal_index"]]
        assert as_original(goal) == record["goal"]


def test_human_goals_are_the_originals(webshop_data: Path, parity: Callable[[str], Any]) -> None:
    goals = open_shop_data(ShopChoice(str(webshop_data), goals="human")).goals
    assert [as_original(goal) for goal in goals] == parity("goals_seed42")["human"]


def test_index_splits_of_both_conventions(webshop_data: Path) -> None:
    ours = open_env(WebShopEnv, data=str(webshop_data), split="test")
    assert ours.split_sizes() == {"train": 5410, "val": 1000, "test": 500, "warmup": 0}
    assert ours.pool[0].payload.number == 0
    assert open_env(WebShopEnv, data=str(webshop_data), split="eval").pool[0].payload.number == 500
    theirs = open_env(WebShopEnv, data=str(webshop_data), split="train", goal_order="fedagent")
    assert theirs.split_sizes() == {"train": 6410, "val": 500, "test": 0, "warmup": 0}
    assert theirs.pool[0].payload.number == 500
    first = {
        order: open_shop_data(ShopChoice(str(webshop_data), goal_order=order)).goals[:50]
        for order in ("webshop", "fedagent")
    }
    assert first["webshop"] != first["fedagent"]


def test_an_empty_split_is_an_error_with_the_sizes(webshop_data: Path) -> None:
    with pytest.raises(FedAgentGymError, match=r"'train' is empty; sizes are .*'test': 13"):
        open_env(WebShopEnv, data=str(webshop_data), goals="human")
    with pytest.raises(FedAgentGymError, match="'warmup' is empty"):
        open_env(WebShopEnv, data=str(webshop_data), split="warmup")


def test_all_lists_every_goal_in_native_order(real: WebShopEnv) -> None:
    pool = real.pool
    assert len(pool) == 6910
    assert [pool.ids[place] for place in (0, 499, 500, 1499, 1500, 6909)] == [
        "webshop/test/00000",
        "webshop/test/00499",
        "webshop/val/00000",
        "webshop/val/00999",
        "webshop/train/00000",
        "webshop/train/05409",
    ]
    assert [pool[place].payload.number for place in (0, 499, 500, 1500, 6909, -1)] == [0, 499, 500, 1500, 6909, 6909]
    assert pool.find_position("webshop/train/00007") == 1507
    assert "webshop/warmup/00000" not in pool and "nonsense" not in pool
    assert pool[1500].split == "train"
    assert list(pool.ids)[1498:1501] == pool.ids[1498:1501]
    with pytest.raises(IndexError):
        pool.ids[6910]


def test_seeds_change_prices_and_caps_but_not_the_order_of_targets(webshop_data: Path) -> None:
    one, other = (open_shop_data(ShopChoice(str(webshop_data), seed=seed)).goals for seed in (42, 7))
    assert [goal.asin for goal in one[:300]] == [goal.asin for goal in other[:300]]
    assert [goal.price_upper for goal in one[:300]] != [goal.price_upper for goal in other[:300]]


@pytest.mark.parametrize(
    ("goals", "order", "expected"),
    [
        (7000, "webshop", {"test": 500, "val": 1000, "train": 5000, "warmup": 500}),
        (7000, "fedagent", {"test": 0, "val": 500, "train": 6000, "warmup": 500}),
        (900, "webshop", {"test": 100, "val": 200, "train": 400, "warmup": 200}),
        (50, "webshop", {"test": 0, "val": 0, "train": 0, "warmup": 50}),
    ],
)
def test_split_sizes(goals: int, order: str, expected: dict[str, int]) -> None:
    ranges = compute_split_ranges(goals, order, (500, 1000, 500))
    assert {name: len(places) for name, places in ranges.items()} == expected
    assert sorted(place for places in ranges.values() for place in places) == list(range(goals))
