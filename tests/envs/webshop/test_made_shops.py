"""Code for the original's data, on a few made products: importing, goals that people wrote, the list of all goals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.envs.make import open_env
from fedagentgym.envs.webshop import stock
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.goals import CAPS, NO_CAP
from fedagentgym.envs.webshop.stock import ShopChoice, open_shop_data
from tests.envs.webshop.test_loading import many, write

HUMAN = {
    "B000000000": [
        {
            "instruction": "i want a lamp..",
            "instruction_attributes": ["easy use"],
            "instruction_options": ["red | blue"],
        },
        {"instruction": "any lamp", "instruction_attributes": [], "instruction_options": []},
    ],
    "B000000003": [{"instruction": "a lamp", "instruction_attributes": ["easy use"], "instruction_options": []}],
}


def make_files(folder: Path, count: int, human: Any = None) -> Path:
    return write(folder, *many(count), human)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of installed data, empty."""
    monkeypatch.setenv("FEDAGENTGYM_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_an_imported_shop_is_the_shop_of_its_files(tmp_path: Path, data: Path) -> None:
    files = make_files(tmp_path / "raw", 30, HUMAN)
    with pytest.raises(FedAgentGymError, match="data add webshop"):
        open_env(WebShopEnv, data="installed", split="test")
    place = stock.import_data(files)
    with pytest.raises(DataError, match="is there already"):
        stock.import_data(files)
    installed, loaded = (open_env(WebShopEnv, data=name, split="test") for name in ("installed", str(files)))
    assert installed.pool.digest == loaded.pool.digest and len(installed.pool) == 60
    assert installed.pool[5] == loaded.pool[5]
    human = [
        [goal.instruction for goal in open_shop_data(ShopChoice(name, goals="human")).goals]
        for name in ("installed", str(files))
    ]
    assert human[0] == human[1] and len(human[0]) == 2
    assert stock.check_shop(None).tasks == stock.check_shop(files).tasks == {"test": 60}
    with pytest.raises(OptionError, match="products=3: imported data is used whole"):
        open_shop_data(ShopChoice("installed", products=3))
    (place / "webshop.json").write_text("[]")
    stock._load_shop_data.cache_clear()
    with pytest.raises(DataError, match="import the data again"):
        open_env(WebShopEnv, data="installed", split="test")


def test_a_shop_without_products_is_not_imported(tmp_path: Path, data: Path) -> None:
    with pytest.raises(DataError, match="holds no product"):
        stock.import_data(write(tmp_path / "raw", [], {}))
    assert not any(data.iterdir())


def test_goals_that_people_wrote_are_theirs_with_a_price_cap(tmp_path: Path) -> None:
    goals = open_shop_data(ShopChoice(str(make_files(tmp_path, 10, HUMAN)), goals="human")).goals
    wrote = {goal.asin: goal for goal in goals}
    assert len(goals) == 2 and set(wrote) == set(HUMAN), "who names no attribute wrote no goal"
    assert wrote["B000000000"].instruction.startswith("i want a lamp, and price lower than ")
    for goal in goals:
        assert goal.price_upper in CAPS and 9.99 < goal.price_upper < NO_CAP
        assert goal.instruction.endswith(f" {goal.price_upper:.2f} dollars") and goal.weight == 1.0
        assert tuple(goal.attributes) == ("easy use",)
    assert tuple(wrote["B000000000"].options) == ("red | blue",) and tuple(wrote["B000000003"].options) == ()


@pytest.mark.parametrize("human", [None, {}, {"B000000001": [HUMAN["B000000000"][1]]}])
def test_a_shop_for_which_nobody_wrote_goals_says_so(tmp_path: Path, human: Any) -> None:
    with pytest.raises(DataError, match="no goals that people wrote"):
        open_shop_data(ShopChoice(str(make_files(tmp_path, 3, human)), goals="human"))


def test_every_way_to_choose_options_is_a_goal(tmp_path: Path) -> None:
    goals = open_shop_data(ShopChoice(str(make_files(tmp_path, 4)))).goals
    found = {(goal.asin, goal.options["color"]) for goal in goals}
    assert len(goals) == 8 and len(found) == 8 and {color for _, color in found} == {"red | blue", "navy"}
    assert goals[-1] == goals[7] and goals[2:4] == [goals[2], goals[3]]
    for beyond in (8, -9):
        with pytest.raises(IndexError):
            goals[beyond]
    assert {goal.weight for goal in goals} == {1 / 8}
    assert all(f"with color: {goal.options['color']}, and price" in goal.instruction for goal in goals)


def test_all_lists_the_goals_of_every_split_in_their_order(tmp_path: Path) -> None:
    pool = open_env(WebShopEnv, data=str(make_files(tmp_path, 800)), split="all").pool
    ids = [
        "webshop/test/00000",
        "webshop/test/00499",
        "webshop/val/00000",
        "webshop/train/00000",
        "webshop/train/00099",
    ]
    places = [0, 499, 500, 1500, 1599]
    assert len(pool) == 1600 and [pool.ids[place] for place in places] == ids
    assert [pool.find_position(identifier) for identifier in ids] == places
    assert [pool[place].payload.number for place in (*places, -1)] == [*places, 1599]
    assert list(pool.ids)[1498:1502] == pool.ids[1498:1502] and pool[500].split == "val"
    assert "webshop/warmup/00000" not in pool and "nonsense" not in pool
    for beyond in (1600, -1601):
        with pytest.raises(IndexError):
            pool.ids[beyond]


def test_seeds_change_caps_and_orders_change_the_order(tmp_path: Path) -> None:
    files = str(make_files(tmp_path, 300))
    plain, other, theirs = (
        open_shop_data(ShopChoice(files, **options)).goals for options in ({}, {"seed": 7}, {"goal_order": "fedagent"})
    )
    targets, caps = (
        [[goal.asin for goal in goals] for goals in (plain, other, theirs)],
        [g.price_upper for g in plain],
    )
    assert targets[0] == targets[1] != targets[2] and sorted(targets[0]) == sorted(targets[2])
    assert caps != [goal.price_upper for goal in other]
    assert open_env(WebShopEnv, data=files, split="train", goal_order="fedagent").split_sizes()["val"] == 500


def test_a_task_of_another_shop_is_refused(tmp_path: Path) -> None:
    small, large = (
        open_env(WebShopEnv, data=str(make_files(tmp_path / str(count), count)), split="test") for count in (2, 40)
    )
    beyond = next(task for task in large.pool if task.payload.asin == "B000000039")
    with pytest.raises(DataError, match="was made for another shop: its target B000000039"):
        small.begin(beyond, 0)
    with pytest.raises(DataError, match="carries no shopping goal: its payload is int"):
        small.begin(replace(beyond, payload=3), 0)
