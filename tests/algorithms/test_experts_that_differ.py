"""Experts that are competent at home and misled elsewhere: who is asked, and how large an auxiliary set has to be to tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.experts import choose_experts, compute_competence
from fedagentgym.algorithms.runtime import ExperimentSpec, Runtime
from fedagentgym.base.settings import merge
from fedagentgym.base.streams import stream

CLIENTS = 4
SPEC: dict[str, Any] = {
    "env": {"id": "fedagentgym/Skills-v0", "options": {"skills": CLIENTS}},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 4, "group_size": 4},
    "partition": {"sampler": "by_source", "clients": CLIENTS, "roles": {"auxiliary": 60, "server": 60}},
}


def make(**settings: Any) -> Any:
    loaded = ExperimentSpec.load(merge(SPEC, {"algorithm": {"name": "fedgrpo", "experts": 1, **settings}}))
    return make_algorithm(loaded, Runtime(loaded))


def select(algorithm: Any, right: np.ndarray) -> list[list[int]]:
    this_round = SimpleNamespace(seed=0, number=1, clients=SimpleNamespace(ids=tuple(range(CLIENTS))))
    return algorithm.select_experts(
        list(algorithm.questions.pool.ids), SimpleNamespace(memory={"right": right}), this_round
    )


def measure_hits(algorithm: Any, right: np.ndarray) -> float:
    """The share of questions for which the client of their category is asked."""
    homes = {name: number for number, name in enumerate(sorted(algorithm.questions.pool.category_names))}
    asked = zip(algorithm.questions.pool, select(algorithm, right), strict=True)
    return float(np.mean([experts == [homes[task.category]] for task, experts in asked]))


@pytest.mark.parametrize(("selection", "least", "most"), [("oracle", 1.0, 1.0), ("random", 0.05, 0.5)])
def test_an_oracle_asks_the_client_that_knows_the_category(selection: str, least: float, most: float) -> None:
    algorithm = make(selection=selection)
    pool = algorithm.auxiliary.pool
    categories = [pool.category_names[code] for code in pool.category_codes]
    names = sorted(pool.category_names)
    right = np.array([[int(category == name) for category in categories] for name in names], dtype=np.uint8)
    assert least <= measure_hits(algorithm, right) <= most


def test_an_oracle_without_examples_of_a_category_falls_back_on_all() -> None:
    algorithm = make(selection="oracle")
    pool = algorithm.auxiliary.pool
    few = [task.id for task in pool if task.category != pool.category_names[0]]
    algorithm.auxiliary.pool = pool.subset(few)
    right = np.zeros((CLIENTS, len(few)), dtype=np.uint8)
    right[2] = 1
    assert all(experts == [2] for experts in select(algorithm, right))


@pytest.mark.parametrize(("examples", "least", "most"), [(3, 0.3, 0.8), (20, 0.9, 1.0)])
def test_twenty_examples_of_a_skill_show_who_has_it(examples: int, least: float, most: float) -> None:
    """An expert right in 0.95 at home, beside seven that are right in half of the cases: the share of right choices."""
    draws, hits = np.random.default_rng(0), 0
    for question in range(400):
        right = {client: draws.random(examples) < (0.95 if client == 0 else 0.5) for client in range(8)}
        skill = compute_competence(right, np.arange(examples))
        hits += choose_experts(skill, 1, stream(0, "expert", question)) == [0]
    assert least <= hits / 400 <= most
