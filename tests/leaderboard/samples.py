"""Small results of both tracks, made of real episodes of the smallest world: what the page and the checks are tried on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedagentgym.agents.presets import make_agent
from fedagentgym.base.encoding import bytes_digest, digest
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.leaderboard.aggregate import CellData, make_point
from fedagentgym.leaderboard.record import (
    AgentRecord,
    ClientRecord,
    EntryRecord,
    Manifest,
    MethodRecord,
    ScenarioRecord,
    Spent,
)
from fedagentgym.leaderboard.results import PackedCell, Result, write_result
from fedagentgym.leaderboard.suite import Suite
from fedagentgym.learning.evaluation import Evaluation, evaluate, format_episodes
from fedagentgym.learning.settings import EvaluationSettings

GUESS = "fedagentgym/Guess-v0"
AGENTS_SUITE = Suite.load(
    {
        "name": "sample-agents-v1",
        "track": "agents",
        "title": "Guessing, for agents",
        "scenarios": {
            "guess": {"env": GUESS, "about": "hidden numbers"},
            "other": {"env": GUESS, "options": {"seed": 5}},
        },
        "seeds": [0, 1],
        "ranking": {"tasks": 8, "repeats": 2},
        "pass_powers": [2],
    }
)
METHODS_SUITE = Suite.load(
    {
        "name": "sample-methods-v1",
        "track": "methods",
        "title": "Guessing, for methods",
        "expected": ["Who learns ends above who stays."],
        "config": "demo",
        "scenarios": {
            "uniform": {"axis": "preference", "level": 0.0},
            "omega-0.5": {"axis": "preference", "level": 0.5},
            "omega-0.9": {"axis": "preference", "level": 0.9},
        },
        "seeds": [0, 1],
        "ranking": {"tasks": 12},
        "selection": {"tasks": 6, "every": 1},
        "budget": {"rounds": 3, "episodes": 300},
        "target": 0.6,
        "pairs": [["learns", "stays"], ["learns", "nobody"]],
        "smallest_difference": 0.05,
    }
)


def play(
    agent: str, split: str, tasks: int, repeats: int, seed: int, options: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Evaluation, str]:
    """An agent's results, and its episodes as text."""
    env = open_env(GUESS, split=split, **options)
    player = make_agent(agent, env)
    settings = EvaluationSettings(split=split, tasks=tasks, repeats=repeats)
    found = evaluate(player, env, settings, seed=derive(seed, "ranked"))
    return found, format_episodes(found, player, env, {"split": split})


def describe(suite: Suite, name: str, options: Mapping[str, Any]) -> ScenarioRecord:
    env = open_env(GUESS, split="test", **options)
    definition, ids = suite.scenarios[name], list(env.pool.ids[: suite.ranking.tasks])
    return ScenarioRecord(
        name=name,
        env=GUESS,
        options=dict(options),
        split="test",
        tasks=len(ids),
        repeats=suite.ranking.repeats,
        pool=env.pool.digest,
        task_ids=digest(ids),
        task_set=replace(env.task_set, ids=ids).digest,
        axis=definition.axis,
        level=definition.level,
        clients=3 if suite.track == "methods" else None,
        client_split=digest(name) if suite.track == "methods" else None,
    )


def write_agents_sample(folder: Path, agent: str, name_of_entry: str | None = None, *, most: int = 2) -> Manifest:
    """`agent` (expert, random) on the agents track, in the first scenarios."""
    suite, cells, scenarios = AGENTS_SUITE, [], []
    for name, scenario in list(suite.scenarios.items())[:most]:
        scenarios.append(describe(suite, name, scenario.options))
        for seed in suite.seeds:
            found, text = play(agent, "test", 8, 2, seed, scenario.options)
            spent = Spent(episodes=16, env_steps=found.stats.steps)
            cells.append(PackedCell(CellData(name, seed, found.groups, spent), text))
    called = name_of_entry or agent
    entry = EntryRecord(name=called, title=called, agent=AgentRecord(kind="program", settings={"name": agent}))
    return write_result(Result(suite, entry, tuple(scenarios), tuple(cells)), folder)


def write_methods_sample(
    folder: Path, method: str, players: Sequence[str] = ("random", "random", "expert")
) -> Manifest:
    """A method whose rounds are played by these agents: it learns where a better one follows."""
    suite, cells, scenarios = METHODS_SUITE, [], []
    for place, name in enumerate(suite.scenarios):
        scenarios.append(describe(suite, name, {}))
        for seed in suite.seeds:
            points, selections = [], []
            for number, player in enumerate(players):
                found, text = play(player, "val", 6, 1, seed + 10 * number + 100 * place)
                spent = Spent(rounds=number, episodes=100 * number, env_steps=700 * number, bytes_down=9000 * number)
                points.append(make_point(number, found.groups, spent))
                selections.append(text)
            ranked, episodes = play(players[-1], "test", 12, 1, seed)
            policy = bytes_digest(f"{method}{seed}".encode())
            data = CellData(
                name, seed, ranked.groups, points[-1].spent, tuple(points), make_clients(place), policy=policy
            )
            cells.append(PackedCell(data, episodes, "".join(selections), {"name": method}))
    entry = EntryRecord(
        name=method,
        title=method,
        baseline=True,
        agent=AgentRecord(kind="model", settings={"name": "tiny"}),
        method=MethodRecord(algorithm=method, changes=(f"algorithm={method}",)),
    )
    return write_result(Result(suite, entry, tuple(scenarios), tuple(cells)), folder)


def make_clients(place: int) -> tuple[ClientRecord, ...]:
    """Three clients, one of which fares worse the less even the division is."""
    return tuple(
        ClientRecord(
            client=number,
            tasks=8,
            mixture={"small": 0.5, "medium": 0.25, "large": 0.25},
            coverage=1.0,
            success=max(0.0, 0.9 - 0.2 * place * number),
        )
        for number in range(3)
    )
