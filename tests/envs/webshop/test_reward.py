"""Rewards: every recorded component, and the original's own unit tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.envs.webshop.catalogue import Product
from fedagentgym.envs.webshop.goals import Goal
from fedagentgym.envs.webshop.reward import (
    COLORS,
    _load_spacy_nouns,
    compute_purchase_reward,
    count_matched_attributes,
    count_matched_options,
    extract_nouns_by_rule,
    get_noun_function,
    match_kind,
    normalize_color,
)


def product(record: dict[str, Any]) -> Product:
    return Product(
        record.get("asin", "X"), record.get("Title", record.get("name", "")), "$1.0", record.get("Description", ""),
        tuple(record.get("BulletPoints", ())), record.get("options", {}), tuple(record.get("Attributes", ())),
        record.get("query", ""), record.get("category", ""), record.get("product_category", ""), "", (1.0,),
    )  # fmt: skip


def goal(record: dict[str, Any]) -> Goal:
    options = record.get("goal_options", {})
    return Goal(
        0, 0, record.get("asin", ""), "", record.get("query", ""), record.get("name", ""), record.get("product_category", ""),
        record.get("instruction_text", ""), tuple(record.get("attributes", ())), record.get("price_upper", 10.0),
        options if isinstance(options, dict) else tuple(options), 1.0,
    )  # fmt: skip


def test_every_component_is_bit_equal_given_the_recorded_nouns(parity: Callable[[str], Any]) -> None:
    recorded = parity("reward_cases")
    assert len(recorded["cases"]) == 397
    for case in recorded["cases"]:
        bought, wanted = recorded["products"][case["purchased_asin"]], case["goal"]
        nouns = {bought["name"]: tuple(case["purchased_nouns"]), wanted["name"]: tuple(case["goal_nouns"])}
        result = compute_purchase_reward(
            product(bought), case["price"], case["chosen_options"], goal(wanted), nouns.__getitem__
        )
        assert result.total == case["expected_total"], case["tag"]
        assert result.details() == case["expected"], case["tag"]
        assert result.options == case["num_option"] or case["expected"].get("r_option") is not None


def test_the_default_nouns_never_change_a_target_purchase(parity: Callable[[str], Any]) -> None:
    recorded = parity("reward_cases")
    differing = others = 0
    for case in recorded["cases"]:
        bought, wanted = recorded["products"][case["purchased_asin"]], case["goal"]
        result = compute_purchase_reward(
            product(bought), case["price"], case["chosen_options"], goal(wanted), extract_nouns_by_rule
        )
        if bought["asin"] == wanted["asin"]:
            assert result.total == case["expected_total"]
        else:
            others += 1
            differing += result.kind.r_type != case["expected"]["r_type"]
    assert (differing, others) == (15, 202)


def test_colours_are_the_originals(webshop_data: Any) -> None:
    import json

    assert list(COLORS) == json.loads((webshop_data / "colors.json").read_text())["colors"]


def test_the_originals_unit_tests(parity: Callable[[str], Any]) -> None:
    cases = parity("unit_test_expectations")
    for case in cases["attribute_reward"]:
        found = count_matched_attributes(product(case["purchased"]), case["goal_attributes"])
        assert [found / len(case["goal_attributes"]), found] == case["expected"]
    for case in cases["option_reward"]:
        assert count_matched_options(case["purchased"], case["goal"]) == case["expected"][1]
    for text, colour in cases["normalize_color"]:
        assert normalize_color(text) == colour
    for case in cases["type_reward"]["category"]:
        kind = match_kind(
            product({"product_category": case["purchased"], "name": "a b"}),
            goal({"product_category": case["goal"], "name": "c d"}),
            extract_nouns_by_rule,
        )
        assert kind.category_match == case["expected_category_match"]
    exact = cases["type_reward"]["exact"]
    kind = match_kind(product(exact["purchased"]), goal(exact["goal"]), extract_nouns_by_rule)
    assert kind._asdict() == {**exact["expected"], "title_score": 1.0}


def test_titles_without_nouns_count_as_slightly_alike() -> None:
    kind = match_kind(product({"name": "x"}), goal({"name": "1 2 3", "query": "q"}), extract_nouns_by_rule)
    assert (kind.title_score, kind.r_type) == (0.2, 0.5)


def test_nouns_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_noun_function("rule") is extract_nouns_by_rule
    assert get_noun_function(str.split) is str.split  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(FedAgentGymError, match="nouns is"):
        get_noun_function("guess")
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(FedAgentGymError, match="needs spaCy"):
        get_noun_function("spacy")
    word = SimpleNamespace
    tagged = [word(text="Red", pos_="ADJ"), word(text="Shoes", pos_="NOUN"), word(text="Acme", pos_="PROPN")]
    installed: set[str] = set()
    library = SimpleNamespace(
        util=SimpleNamespace(is_package=installed.__contains__), load=lambda name, disable: lambda title: tagged
    )
    monkeypatch.setitem(sys.modules, "spacy", library)
    with pytest.raises(FedAgentGymError, match="spacy download en_core_web_sm"):
        get_noun_function("spacy")
    installed.add("en_core_web_sm")
    assert get_noun_function("spacy")("Red Shoes Acme") == ("shoes", "acme")
    _load_spacy_nouns.cache_clear()
