"""The generated shop: the same from the same seed, as skewed as the real one, every text its own, worth shopping in."""

from __future__ import annotations

from collections import Counter

import pytest

from fedagentgym.base.encoding import digest
from fedagentgym.base.streams import stream
from fedagentgym.envs.make import open_env
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.generate import ShopLayout, generate, generate_records
from fedagentgym.envs.webshop.index import make_document
from fedagentgym.envs.webshop.stock import ShopChoice, open_shop_data

REAL_SHARES = {"fashion": 0.783, "garden": 0.140, "beauty": 0.031, "electronics": 0.029, "grocery": 0.018}


def test_golden_records() -> None:
    """A change here changes published splits: raise `generate.VERSION` with it."""
    assert digest([record for record, _ in generate_records(40, 7)])[7:23] == GOLDEN_RECORDS
    goals = open_shop_data(ShopChoice()).goals
    assert digest([[goal.instruction, goal.asin, goal.price_upper] for goal in goals[:100]])[7:23] == GOLDEN_GOALS


GOLDEN_RECORDS = "78b13c916f5aeaed"
GOLDEN_GOALS = "cec359021e81c26f"


def test_a_larger_shop_begins_with_the_smaller_one() -> None:
    small, large = list(generate(30, 5)), list(generate(200, 5))
    assert large[:30] == small
    assert list(generate(30, 6)) != small


def test_no_two_products_share_a_text_or_a_number() -> None:
    products = [product for product, _ in generate(6000, 42)]
    assert len({product.asin for product in products}) == 6000
    assert len({make_document(product) for product in products}) == 6000
    assert all(len(product.asin) == 10 for product in products)


def test_goals_are_as_many_and_as_skewed_as_the_real_ones(default: WebShopEnv) -> None:
    goals = default.stock.goals
    assert 6500 < len(goals) < 8000
    counted = Counter(default.stock.catalogue.category_names[code] for code in goals.category_codes)
    for name, share in REAL_SHARES.items():
        assert abs(counted[name] / len(goals) - share) < 0.03, name
    assert default.split_sizes() == {"train": len(goals) - 2000, "val": 1000, "test": 500, "warmup": 500}


def test_the_tiny_shop(tiny: WebShopEnv) -> None:
    assert len(tiny.stock.catalogue) == 60
    assert 1100 < len(tiny.stock.goals) < 1400
    sizes = tiny.split_sizes()
    assert (sizes["test"], sizes["val"], sizes["warmup"]) == (100, 200, 200) and sizes["train"] > 600
    ids = {split: set(open_env(WebShopEnv, size="tiny", split=split).pool.ids) for split in sizes}
    assert sum(map(len, ids.values())) == len(set().union(*ids.values())) == len(tiny.stock.goals)


def test_the_small_shop_is_the_tiny_one_with_more_goals_to_imitate(tiny: WebShopEnv) -> None:
    small = open_env(WebShopEnv, size="small")
    assert list(small.stock.goals) == list(tiny.stock.goals)
    assert small.split_sizes() == {"train": len(tiny.stock.goals) - 700, "val": 100, "test": 100, "warmup": 500}


def first_wrong(env: WebShopEnv, queries: int) -> float:
    """The share of queries without one wish that find another product first."""
    pick, wrong = stream(1, "missing constraint"), 0
    for _ in range(queries):
        goal = env.pool[pick.integers(len(env.pool))].payload
        wishes = [*goal.attributes, *goal.options.values()]
        dropped = pick.integers(len(wishes))
        query = " ".join([goal.query, *(wish for place, wish in enumerate(wishes) if place != dropped)])
        wrong += (env.site.shop.find(query.lower(), 0) or [-1])[0] != goal.row
    return wrong / queries


def test_a_missing_wish_misleads_about_as_often_as_in_the_real_shop(default: WebShopEnv, real: WebShopEnv) -> None:
    generated, original = first_wrong(default, 400), first_wrong(real, 400)
    assert abs(generated - original) < 0.12, (generated, original)


def test_near_duplicates_differ_in_an_attribute() -> None:
    products = [product for product, _ in generate(40, 3)]
    for start in range(0, 40, 4):
        family = products[start : start + 4]
        assert len({product.query for product in family}) == 1
        first = set(family[0].attributes)
        assert all(len(first & set(product.attributes)) == 3 for product in family[1:])


@pytest.mark.parametrize("layout", [ShopLayout(), ShopLayout(all_instructed=True, wide=True)])
def test_every_generated_goal_can_be_met(layout: ShopLayout) -> None:
    for product, instruction in generate(400, 11, layout):
        assert instruction.text is not None or not layout.all_instructed
        if instruction.text is not None:
            assert instruction.attributes and set(instruction.attributes) <= set(product.attributes)
            assert all(values for values in product.options.values())
