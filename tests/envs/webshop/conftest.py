"""The original's recorded answers, and the shops that the tests play in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.envs.make import open_env
from fedagentgym.envs.webshop.env import WebShopEnv
from fedagentgym.envs.webshop.reward import NounFunction, extract_nouns_by_rule


@pytest.fixture(scope="session")
def webshop_data(shared_data: Path) -> Path:
    return shared_data / "webshop"


@pytest.fixture(scope="session")
def parity(webshop_data: Path) -> Callable[[str], Any]:
    """The original's answers, by file name."""
    return lambda name: json.loads((webshop_data / "parity" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def recorded_nouns(parity: Callable[[str], Any]) -> NounFunction:
    """The nouns that the original's tagger found, where they are recorded."""
    cases = parity("reward_cases")
    known: dict[str, tuple[str, ...]] = {}
    for case in cases["cases"]:
        known[cases["products"][case["purchased_asin"]]["name"]] = tuple(case["purchased_nouns"])
        known[case["goal"]["name"]] = tuple(case["goal_nouns"])
    return lambda title: known.get(title) or extract_nouns_by_rule(title)


@pytest.fixture(scope="session")
def real(webshop_data: Path) -> WebShopEnv:
    return open_env(WebShopEnv, data=str(webshop_data), split="all", max_turns=100)


@pytest.fixture(scope="session")
def tiny() -> WebShopEnv:
    return open_env(WebShopEnv, size="tiny")


@pytest.fixture(scope="session")
def default() -> WebShopEnv:
    return open_env(WebShopEnv)
