"""Small results of both tracks, made of real episodes of the smallest world: what the page and the checks are tried on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedagentgym.agents.presets import make_agent
from fedagentgym.base.encoding import bytes_digest, digest
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.leaderboard.entries import Entry
from fedagentgym.leaderboard.results import ENTRY, SUITE, Result, name_run
from fedagentgym.leaderboard.suite import Suite, make_ranking, to_yaml
from fedagentgym.learning.evaluation import Evaluation, evaluate, format_episodes
from fedagentgym.learning.settings import EvaluationSettings
from fedagentgym.runs.claims import describe_evaluated, describe_tasks, make_point
from fedagentgym.runs.folder import CONFIG, RANKED, RECORD, format_document
from fedagentgym.runs.record import (
    AgentRecord,
    ClientRecord,
    ClientSplitRecord,
    CurvePoint,
    EnvRecord,
    Made,
    RunRecord,
    Spent,
)

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


MADE = Made(
    date="2026-01-01T00:00:00+00:00", seconds=1.0, versions={"fedagentgym": "0.1.0"}, machine={"system": "Linux"}
)
ZEROS = "sha256:" + "0" * 64


def play(
    agent: str, split: str, tasks: int, repeats: int, seed: int, options: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Evaluation, str]:
    """An agent's results, and its episodes as text."""
    env = open_env(GUESS, split=split, **options)
    player = make_agent(agent, env)
    settings = EvaluationSettings(split=split, tasks=tasks, repeats=repeats)
    found = evaluate(player, env, settings, seed=derive(seed, "ranked"))
    return found, format_episodes(found.groups, player, env, {"split": split})


def write_agents_sample(folder: Path, agent: str, name_of_entry: str | None = None, *, most: int = 2) -> Result:
    """`agent` (expert, random) on the agents track, in the first scenarios."""
    called = name_of_entry or agent
    write_entry(folder, AGENTS_SUITE, Entry(name=called, title=called, agent={"name": agent}))
    for name, scenario in list(AGENTS_SUITE.scenarios.items())[:most]:
        for seed in AGENTS_SUITE.seeds:
            found, text = play(agent, "test", 8, 2, seed, scenario.options)
            write_run(
                folder / name_run((name, seed)),
                make_record(
                    AGENTS_SUITE, name, seed, found, kind="evaluation", agent=describe_player("program", agent)
                ),
                {RANKED: text},
            )
    return Result(folder)


def write_methods_sample(folder: Path, method: str, players: Sequence[str] = ("random", "random", "expert")) -> Result:
    """A method whose rounds are played by these agents: it learns where a better one follows."""
    suite = METHODS_SUITE
    write_entry(folder, suite, Entry(name=method, title=method, baseline=True, changes=(f"algorithm={method}",)))
    for place, name in enumerate(suite.scenarios):
        for seed in suite.seeds:
            points, files = [], {}
            for number, player in enumerate(players):
                found, text = play(player, "val", 6, 1, seed + 10 * number + 100 * place)
                spent = Spent(rounds=number, episodes=100 * number, env_steps=700 * number, bytes_down=9000 * number)
                points.append(make_curve_point(number, found, spent))
                files[f"evaluation/{number:04d}.jsonl"] = text
            ranked, files[RANKED] = play(players[-1], "test", 12, 1, seed)
            record = make_record(
                suite,
                name,
                seed,
                ranked,
                kind="training",
                algorithm=method,
                policy=bytes_digest(f"{method}{seed}".encode()),
                agent=describe_player("model", "tiny"),
                curve=tuple(points),
                clients=make_clients(place),
                client_split=ClientSplitRecord(digest=digest(name), clients=3),
            )
            write_run(folder / name_run((name, seed)), record, files)
    return Result(folder)


def describe_player(kind: Any, name: str) -> AgentRecord:
    return AgentRecord(kind=kind, settings={"name": name})


def make_curve_point(number: int, found: Evaluation, spent: Spent) -> CurvePoint:
    """A point of a learning curve."""
    return make_point(describe_evaluated(found.to_plain(), number, ZEROS), spent)


def make_record(
    suite: Suite,
    scenario: str,
    seed: int,
    found: Evaluation,
    *,
    curve: tuple[CurvePoint, ...] = (),
    policy: str | None = None,
    **about: Any,
) -> RunRecord:
    """The record of a run whose ranked episodes were found so."""
    env = open_env(GUESS, split="test", **suite.scenarios[scenario].options)
    ids = [group[0].task for group in found.groups]
    best = max(curve, key=lambda one: (one.overall["success"]["mean"], -one.round)).round if curve else None
    return RunRecord(
        name=suite.name,
        seed=seed,
        config_digest=ZEROS,
        env=EnvRecord(id=GUESS, options={}, pool=env.pool.digest, task_set=env.task_set.digest),
        rounds=curve[-1].round if curve else 0,
        curve=curve,
        best_round=best,
        tasks=describe_tasks(env, ids, make_ranking(suite, scenario, seed)),
        ranked=describe_evaluated(found.to_plain(), best, policy),
        spent=curve[-1].spent if curve else Spent(episodes=found.to_plain()["episodes"], env_steps=found.stats.steps),
        made=MADE,
        **about,
    )


def write_entry(folder: Path, suite: Suite, entry: Entry) -> None:
    """The documents of a result."""
    folder.mkdir(parents=True)
    (folder / SUITE).write_text(to_yaml(suite))
    (folder / ENTRY).write_text(format_document(entry))


def write_run(folder: Path, record: RunRecord, files: Mapping[str, str]) -> None:
    """A run's folder with these files of episodes."""
    (folder / "evaluation").mkdir(parents=True)
    (folder / CONFIG).write_text(
        f"{{env: {{id: {GUESS}}}, evaluation: {{}}, name: {record.name}, seed: {record.seed}}}\n"
    )
    (folder / RECORD).write_text(format_document(record))
    for name, text in files.items():
        (folder / name).write_text(text)


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
