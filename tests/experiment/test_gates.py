"""Gates before learning: their numbers are those of the episodes, and a run that cannot learn gets the reason."""

from __future__ import annotations

from typing import Any

import pytest

from fedagentgym.agents import make_agent
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.envs import open_env
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.gates import evaluate_gates, measure_gates, open_environments
from fedagentgym.experiment.opened import open_data
from fedagentgym.learning.rollouts import collect

pytest.importorskip("torch")


def play(agent: str, **options: Any) -> Any:
    env = open_env("fedagentgym/Guess-v0", **options)
    return collect(make_agent(agent, env), env, env.pool.ids[:6], group_size=8).groups


def test_an_agent_that_always_succeeds_has_nothing_to_learn() -> None:
    constant, room, form = evaluate_gates(play("expert"), {"score": 1.0}, 0.1)
    assert (constant.value, room.value, form.value) == (1.0, 0.0, 1.0)
    assert (constant.passed, room.passed, form.passed) == (False, False, True)
    assert "it can do these tasks" in room.describe()
    assert "missed" in constant.describe() and form.describe().endswith("passed")


def test_numbers_are_those_of_the_episodes() -> None:
    groups = play("random", max_turns=3)
    constant, room, _ = evaluate_gates(groups, {"score": 1.0}, 0.0)
    solved = [[episode.success for episode in group] for group in groups]
    assert room.value == pytest.approx(sum(map(any, solved)) / 6 - sum(map(sum, solved)) / 48, abs=0.01)
    ever, once = (float(part.strip("()")) for part in room.name.split()[3:6:2])
    assert room.value == pytest.approx(ever - once), "the difference is that of the numbers beside it"
    assert constant.value == sum(len({round(episode.reward, 9) for episode in group}) == 1 for group in groups) / 6


def test_the_tiny_agent_of_skills_passes_and_the_same_seed_says_the_same() -> None:
    changes = ["learning.group_size=4"]
    gates = measure_gates(load_config("tiny-skills", changes), tasks=8)
    assert gates == measure_gates(load_config("tiny-skills", changes), tasks=8)
    assert gates[2].passed


def test_where_clients_have_variants_each_plays_its_own() -> None:
    def open_worlds(*changes: str) -> list[tuple[Any, list[str]]]:
        config = load_config("tiny-skills", ["agent={name: expert}", "warm_start=null", *changes])
        runtime = Runtime(config.spec(), client_split=open_data(config)[0])
        return [(env.variant, tasks) for env, tasks in open_environments(config, runtime, 12)]

    ((variant, tasks),) = open_worlds()
    assert variant is None and len(set(tasks)) == 12
    worlds = open_worlds("partition={sampler: uniform, clients: 2, variant: swapped_procedures}")
    assert sorted(variant is None for variant, _ in worlds) == [False, True], "one of two worlds is the unchanged one"
    assert sum(len(tasks) for _, tasks in worlds) == 12
