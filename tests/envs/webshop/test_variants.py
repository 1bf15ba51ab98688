"""Perturbed shops: each kind changes what it says, reproducibly, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.make import open_env
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.reward import compute_purchase_reward, count_matched_options, extract_nouns_by_rule
from fedagentgym.envs.webshop.variants import OwnCatalogue, choose_best_options, fails_exactly, keep_products

SPLIT = {"kind": "catalog_split", "env_div": 0.5, "keep_ratio": 0.3, "seed": 1, "client": 4}


@pytest.fixture(scope="session")
def client_tasks(default: WebShopEnv) -> list[str]:
    return [default.pool.ids[place] for place in range(0, 5000, 50)]


def jaccard(a: Any, b: Any) -> float:
    return float((a & b).sum() / (a | b).sum())


def test_env_div_moves_from_one_shared_subset_to_independent_ones() -> None:
    means = []
    for env_div in (0.0, 0.25, 0.5, 1.0):
        kept = [
            keep_products(4000, [], OwnCatalogue(env_div=env_div, keep_ratio=0.3, seed=0, client=client))
            for client in range(4)
        ]
        assert all(abs(mask.mean() - 0.3) < 0.03 for mask in kept)
        means.append(np.mean([jaccard(kept[a], kept[b]) for a in range(4) for b in range(a)]))
    assert means[0] == 1.0
    assert means == sorted(means, reverse=True)
    assert abs(means[-1] - 0.3 * 0.3 / (1 - 0.7 * 0.7)) < 0.03


def test_a_split_catalogue_keeps_targets_in_reach_and_pages_full(default: WebShopEnv, client_tasks: list[str]) -> None:
    env = open_env(WebShopEnv, tasks=client_tasks, variant=SPLIT)
    shop, whole = env.site.shop, default.site.shop
    assert shop.allowed is not None
    targets = {task.payload.row for task in env.pool}
    assert all(shop.allowed[row] for row in targets)
    assert shop.allowed.sum() < 500
    for task in env.pool:
        query = task.payload.instruction.lower()
        found, before = list(shop.find(query, 0) or ()), list(whole.find(query, 0) or ())
        assert all(shop.allowed[row] for row in found)
        kept = [row for row in before if shop.allowed[row]]
        assert found[: len(kept)] == kept
        assert len(found) == 50
        if task.payload.row in before:
            assert found.index(task.payload.row) <= before.index(task.payload.row)
    assert all(shop.allowed[row] for row in shop.find("<c> beauty", 0) or ())
    assert all(shop.allowed[row] for row in shop.find("<r>", 0) or ())
    again = open_env(WebShopEnv, tasks=client_tasks, variant=SPLIT).site.shop.allowed
    assert again is not None and (again == shop.allowed).all()


@pytest.mark.parametrize(
    ("mode", "expectation"),
    [("as_ranked", "same"), ("reverse", "reversed"), ("shuffle", "shuffled"), ("random_half", "half")],
)
def test_rank_wrappers_only_reorder(default: WebShopEnv, mode: str, expectation: str) -> None:
    env = open_env(WebShopEnv, variant={"kind": "rank_wrapper", "mode": mode, "seed": 2, "client": 1})
    queries = [default.pool[place].payload.instruction.lower() for place in range(0, 600, 20)]
    pairs = [(list(env.site.shop.find(q, 0) or ()), list(default.site.shop.find(q, 0) or ())) for q in queries]
    assert all(sorted(mine) == sorted(theirs) for mine, theirs in pairs)
    same = sum(mine == theirs for mine, theirs in pairs)
    turned = sum(mine == theirs[::-1] for mine, theirs in pairs)
    expected = {
        "same": same == len(pairs), "reversed": turned == len(pairs), "shuffled": same == 0 and turned == 0,
        "half": 0.2 < same / len(pairs) < 0.8,
    }  # fmt: skip
    assert expected[expectation]
    other = open_env(WebShopEnv, variant={"kind": "rank_wrapper", "mode": mode, "seed": 2, "client": 1})
    assert list(other.site.shop.find(queries[0], 0) or ()) == pairs[0][0]


def test_index_fields_and_weights_change_the_ranking_and_nothing_else(default: WebShopEnv) -> None:
    query = default.pool[0].payload.instruction.lower()
    rankings = {
        str(variant): tuple(open_env(WebShopEnv, variant=variant).site.shop.find(query, 0) or ())
        for variant in (
            None,
            {"kind": "index_fields", "fields": ["name"]},
            {"kind": "index_fields", "fields": ["description"]},
            {"kind": "index_fields", "fields": ["name", "description", "bullets", "features"]},
            {"kind": "bm25_weights", "k1": 1.2, "b": 0.75},
            {"kind": "bm25_weights", "k1": 0.1, "b": 0.75},
        )
    }
    ranked = list(rankings.values())
    assert ranked[3] == ranked[4]
    assert len(set(ranked)) == 5
    env = open_env(WebShopEnv, variant={"kind": "index_fields", "fields": ["name"]})
    assert env.pool.digest == default.pool.digest


@pytest.mark.parametrize("attack", ["price", "color", "size", "price+color"])
@pytest.mark.parametrize("real_data", [False, True])
def test_lookalikes_fail_exactly_what_they_attack(
    attack: str, real_data: bool, request: pytest.FixtureRequest, client_tasks: list[str]
) -> None:
    options: dict[str, Any] = {}
    if real_data:
        options["data"] = str(request.getfixturevalue("webshop_data"))
    env = open_env(
        WebShopEnv, tasks=client_tasks, variant={"kind": "lookalikes", "attack": attack, "seed": 3}, **options
    )
    shop, copies = env.site.shop, env.site.shop.extra
    assert len(copies) > 15
    by_asin = {f"LK{task.payload.asin}": task.payload for task in env.pool}
    ahead = found = 0
    for copy in copies:
        goal = by_asin[copy.asin]
        assert fails_exactly(copy, goal, attack.split("+"), extract_nouns_by_rule)
        bought = compute_purchase_reward(
            copy, copy.prices[0], choose_best_options(copy, goal), goal, extract_nouns_by_rule
        )
        assert 0 < bought.total < 1
        assert bought.price == ("price" not in attack)
        if attack in ("color", "size"):
            name, wanted = attack, goal.options[attack]
            assert not any(
                count_matched_options([v], {name: wanted}) for values in copy.options.values() for v in values
            )
        ranked = [shop.get_head(row).asin for row in shop.find(goal.instruction.lower(), 0) or ()]
        found += copy.asin in ranked[:10]
        ahead += copy.asin in ranked and (goal.asin not in ranked or ranked.index(copy.asin) < ranked.index(goal.asin))
    assert found > 0.8 * len(copies)
    assert ahead > 0.5 * len(copies)


def test_a_lookalike_can_be_opened_and_bought(client_tasks: list[str]) -> None:
    env = open_env(WebShopEnv, tasks=client_tasks, variant={"kind": "lookalikes", "attack": "price"}, max_turns=50)
    copy = env.site.shop.extra[0]
    task = next(task for task in env.pool if f"LK{task.payload.asin}" == copy.asin)
    env.reset(seed=0, options={"task": task.id})
    env.step(f"search[{copy.title}]")
    assert f"click[{copy.asin.lower()}]" in env.episode.view.admissible
    env.step(f"click[{copy.asin.lower()}]")
    assert copy.price_tag in env.episode.view.observation
    *_, info = env.step("click[buy now]")
    assert not info["details"]["r_price"]


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({}, "the key 'kind'"),
        ("shuffle", "the key 'kind'"),
        ({"kind": "catalog_splitt"}, "did you mean 'catalog_split'"),
        ({"kind": "catalog_split", "env_div": 2, "keep_ratio": 0.1, "seed": 0, "client": 0}, "variant.env_div"),
        ({"kind": "catalog_split", "keep_ratio": 0.1, "seed": 0, "client": 0}, "'variant.env_div' is missing"),
        ({"kind": "bm25_weights", "k1": 0, "b": 0.5}, "variant.k1"),
        ({"kind": "index_fields", "fields": ["titel"]}, "variant.fields.0: it must be 'name'"),
        ({"kind": "index_fields", "fields": []}, "variant.fields"),
        ({"kind": "lookalikes", "attack": "brand"}, "variant.attack"),
        ({"kind": "rank_wrapper", "mode": "shuffle", "sed": 1}, "did you mean 'seed'"),
    ],
)
def test_malformed_variants_are_explained(variant: Any, message: str) -> None:
    with pytest.raises(FedAgentGymError, match=message):
        open_env(WebShopEnv, size="tiny", variant=variant)
