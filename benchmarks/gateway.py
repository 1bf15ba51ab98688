"""Play by a program through the gateway compared with play in this process: calls per second, and the results of training.

    python -m benchmarks speed-gateway     python -m benchmarks gateway-learning
    python -m benchmarks gateway-small     python -m benchmarks gateway-programs

The programs are those of `fedagentgym gateway init`, in processes of their own: the plain program, and in the last two benchmarks
programs with libraries. The tiny agent's replies cost so little that the gateway's own cost shows; SmolLM2-135M's replies cost as
much as those of a real model.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.measurement import Measurement
from benchmarks.small_model import QUICK_CHANGES as QUICK_SMALL
from benchmarks.tables import (
    Column,
    ExperimentTable,
    Record,
    Row,
    difference,
    half_width,
    make_success_column,
    run_folder,
    run_table,
    shown,
    to_measurements,
)
from fedagentgym.base.errors import OptionError, join_names
from fedagentgym.base.files import cache_folder
from fedagentgym.base.progress import show_progress
from fedagentgym.base.statistics import mean
from fedagentgym.cli.gateway_programs import NEEDED, PROGRAMS

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.learning.rollouts import Rollouts

ENV = "fedagentgym/Guess-v0"


def _need(*modules: str) -> None:
    """Refuse a benchmark whose programs need these modules, if one is not installed."""
    if missing := [name for name in modules if find_spec(name) is None]:
        needed = " ".join(NEEDED[library] for library in LIBRARIES if NEEDED[library])
        raise OptionError(f"{join_names(missing)}: a program needs it: pip install {needed}")


def write_program(folder: Path, library: str = "plain") -> list[str]:
    """The command of a program of `gateway init`, written into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"{library}_agent.py"
    program.write_text(PROGRAMS[library], "utf-8")
    return [sys.executable, str(program)]


# ---- calls a second -------------------------------------------------------------------------------------------------


class Play(NamedTuple):
    """The speed of play: calls per second, and milliseconds of this process's processor time per call."""

    speed: float
    cost: float


class Plan(NamedTuple):
    """A measured agent: numbers of episodes at a time, episodes of a trial, trials, and the limits of the figures."""

    agent: dict[str, Any]
    counts: tuple[int, ...]
    episodes: int
    trials: int
    share: float
    gap: float


SMALL = "SmolLM2-135M"
PLANS = {
    "tiny": Plan({"name": "tiny"}, (1, 8), 96, 5, 0.3, 5e-5),
    SMALL: Plan(
        {
            "name": "smollm2",
            "device": "cpu",
            "dtype": "float32",
            "decoding": {"constrained": False, "max_new_tokens": 16},
        },
        (4,),
        8,
        2,
        0.8,
        1e-4,
    ),
}


def run_speed(quick: bool = False) -> list[Measurement]:
    """Calls per second through the gateway and in process, alternately and with as many episodes at a time, and the difference
    between recorded log-probs and those that a step computes again. SmolLM2 is measured if it was added."""
    from benchmarks.engine import use_one_thread

    plans = {"tiny": PLANS["tiny"]._replace(counts=(2,), episodes=8, trials=1)} if quick else dict(PLANS)
    if not cache_folder("models", "smollm2").is_dir():
        plans.pop(SMALL, None)
    with use_one_thread():
        return [
            figure
            for name, plan in plans.items()
            for processes in plan.counts
            for figure in _compare_speeds(name, plan, processes)
        ]


def _compare_speeds(name: str, plan: Plan, processes: int) -> list[Measurement]:
    from fedagentgym.agents import make_agent
    from fedagentgym.envs.make import open_env

    env: TextEnv = open_env(ENV)
    shown = f"{name}, {processes} at a time"
    with tempfile.TemporaryDirectory() as folder:
        harness = {"command": write_program(Path(folder)), "processes": processes}
        own: Any = make_agent(plan.agent, env)
        played: Any = make_agent({**plan.agent, "harness": harness}, env)
        with closing(played), show_progress(shown, plan.trials) as bar:
            for agent in (own, played):  # caches are filled and programs started
                _time_play(agent, env, processes, processes, seed=0)
            pairs, gaps = [], []
            for seed in range(1, plan.trials + 1):
                inside, _ = _time_play(own, env, plan.episodes, processes, seed)
                outside, found = _time_play(played, env, plan.episodes, processes, seed)
                pairs.append((inside, outside))
                gaps.append(_find_gap(played, env, found))
                bar.advance()
    speeds = [statistics.median(play.speed for play in way) for way in zip(*pairs, strict=True)]
    costs = [statistics.median(play.cost for play in way) for way in zip(*pairs, strict=True)]
    ratio = statistics.median(outside.speed / inside.speed for inside, outside in pairs)
    wanted = f"at least {plan.share:g}" if processes > 1 else ""
    return [
        Measurement(f"{shown}: in process", speeds[0], "calls/s"),
        Measurement(f"{shown}: by the program", speeds[1], "calls/s"),
        Measurement(f"{shown}: by the program / in process", ratio, "times", wanted),
        Measurement(f"{shown}: in process, processor time", costs[0], "ms a call"),
        Measurement(f"{shown}: by the program, processor time of this process", costs[1], "ms a call"),
        Measurement(
            f"{shown}: log-probs, recorded and computed again, largest difference",
            max(gaps),
            "",
            f"at most {plan.gap:g}",
        ),
    ]


def _time_play(agent: TokenAgent, env: TextEnv, episodes: int, parallel: int, seed: int) -> tuple[Play, Rollouts]:
    from fedagentgym.learning.rollouts import collect

    ids = env.pool.ids
    clock, spent = time.perf_counter(), time.process_time()
    found = collect(agent, env, [ids[place % len(ids)] for place in range(episodes)], seed=seed, parallel=parallel)
    clock, spent = time.perf_counter() - clock, time.process_time() - spent
    calls = sum(len(trajectory.turns) for trajectory in found.trajectories)
    return Play(calls / clock, 1e3 * spent / calls), found


def _find_gap(agent: TokenAgent, env: TextEnv, found: Rollouts) -> float:
    """The largest difference between the recorded log-prob of a drawn token and its log-prob in the learning pass."""
    from fedagentgym.learning.learner import LocalTraining
    from fedagentgym.learning.settings import LearningSettings

    again = LocalTraining(agent, env, LearningSettings()).recompute_logprobs(found.groups)
    gaps = [
        abs(old.logprobs - new.logprobs)[old.mask].max(initial=0.0)
        for before, after in zip(found.trajectories, chain.from_iterable(again), strict=True)
        for old, new in zip(before.segments, after.segments, strict=True)
    ]
    return float(max(gaps))


# ---- what training comes to -----------------------------------------------------------------------------------------

INSIDE, OUTSIDE = "in process", "by the program"
SEEDS = 5
CATEGORY = "Cray"
LEARNING = (
    "algorithm={name: local, client: 2, local_steps: 2}",
    "federation.rounds=2",
    "learning.tasks_per_step=8",
    "evaluation.tasks=400",
    "output.report=none",
)
"""256 episodes of one client of `tiny-skills`, whose category the agent mostly answers wrongly. Our own player plays the
evaluations of both rows, so both start with the same success. The settings were chosen on seed 0, which is not reported."""
QUICK = ("federation.rounds=1", "learning.tasks_per_step=2", "learning.group_size=2", "evaluation.tasks=24")


def read_start(folder: Path, record: Record) -> float:
    """Held-out success on the category before the first round."""
    return float(record["curve"][0]["categories"][CATEGORY])


def run_learning(quick: bool = False) -> list[Measurement]:
    """Success before and after training by a plain program and in process, from the same seeds."""
    folder = run_folder("gateway-learning-quick" if quick else "gateway-learning")
    harness = {"command": write_program(folder), "processes": 4, "evaluate": False}
    table = ExperimentTable(
        folder.name,
        dict.fromkeys((INSIDE, OUTSIDE), "tiny-skills"),
        {"start": read_start, "end": make_success_column(CATEGORY)},
        [(OUTSIDE, INSIDE)],
        seeds=2 if quick else SEEDS,
        first_seed=1,
        changes=(*LEARNING, *QUICK) if quick else LEARNING,
        processes=1,
        row_changes={OUTSIDE: (f"agent.harness={json.dumps(harness)}",)},
    )
    return describe_learning(run_table(table, folder))


def describe_learning(rows: Sequence[Row]) -> list[Measurement]:
    """Start, end and rise of both rows, and the difference of their ends, paired by seed."""
    found = []
    for row in rows:
        rise = [end - start for start, end in zip(row.values["start"], row.values["end"], strict=True)]
        found += [_measure(f"{row.name}: start", row.values["start"]), _measure(f"{row.name}: end", row.values["end"])]
        found.append(_measure(f"{row.name}: rise", rise, "above 0"))
    between = difference(rows, OUTSIDE, INSIDE)["end"]
    return [*found, _measure(f"{OUTSIDE} - {INSIDE}: end", between, "the interval includes 0")]


def _measure(name: str, values: Sequence[float], bar: str = "") -> Measurement:
    spread = f"{shown(half_width(values))} (95 % over {len(values)} seeds)".strip()
    return Measurement(name, mean(values), "", f"{spread}; {bar}" if bar else spread)


# ---- a real model by a library ----------------------------------------------------------------------------------------

GRAPH = "by LangGraph"
ROUNDS = 6
SMALL_CHANGES = (f"federation={{rounds: {ROUNDS}, workers: 0}}", "evaluation.every=2")
"""Changes that play only the first rounds of the preset `small-skills`, which has 15."""


def run_small(quick: bool = False) -> list[Measurement]:
    """SmolLM2-135M in four clients whose program uses LangGraph: success on held-out tasks after every second round."""
    if not quick:
        _need("langchain_openai")
    folder = run_folder("gateway-small-quick" if quick else "gateway-small")
    harness = {"command": write_program(folder, "plain" if quick else "langgraph"), "processes": 4, "evaluate": False}
    numbers = (0, 1) if quick else range(0, ROUNDS + 1, 2)
    changes = (*SMALL_CHANGES, f"agent.harness={json.dumps(harness)}", *(QUICK_SMALL if quick else ()))
    columns = {f"round {number}": make_round_column(place) for place, number in enumerate(numbers)}
    table = ExperimentTable(folder.name, {GRAPH: "small-skills"}, columns, seeds=1, changes=changes, processes=1)
    return to_measurements(run_table(table, folder))


def make_round_column(place: int) -> Column:
    """Held-out success at an evaluation, by its place in the run's curve."""

    def read_success(folder: Path, record: Record) -> float:
        return float(record["curve"][place]["overall"]["success"]["mean"])

    return read_success


# ---- clients with different programs ----------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "name": "gateway-programs",
    "env": {"id": ENV},
    "partition": {"sampler": "uniform", "clients": 3},
    "agent": {"name": "tiny"},
    "learning": {"tasks_per_step": 4, "group_size": 8, "learning_rate": 0.001},
    "algorithm": {"name": "fedagent", "local_steps": 2},
    "federation": {"rounds": 8},
    "evaluation": {"tasks": 60, "every": 8},
    "output": {"report": "none"},
}
HELD_OUT, REPEATS = 60, 3
LIBRARIES = ("plain", "langgraph", "smolagents")
"""The programs of the three clients, in their order."""
TOGETHER = "together"
PLANNED = 12


def make_program_column(command: Sequence[str], tasks: int, repeats: int) -> Column:
    """Success on held-out tasks of a run's last policy, played by a program."""

    def read_success(folder: Path, record: Record) -> float:
        from fedagentgym.agents.gateway.harness import Harness
        from fedagentgym.agents.settings import HarnessSettings
        from fedagentgym.experiment.export import open_policy
        from fedagentgym.experiment.stored import Trust
        from fedagentgym.learning.evaluation import evaluate
        from fedagentgym.learning.settings import EvaluationSettings

        opened = open_policy(folder, trust=Trust((), folder=True))
        harness = Harness(HarnessSettings.load({"command": list(command), "processes": 4}, "harness"))
        with closing(replace(opened.agent, harness=harness)) as agent:
            settings = EvaluationSettings(tasks=tasks, repeats=repeats)
            env = opened.run.runtime.open_env(split=settings.split)
            return evaluate(agent, env, settings, seed=record["config"]["seed"]).overall["success"].mean

    return read_success


def make_programs_table(folder: Path, quick: bool) -> ExperimentTable:
    """One client with each program, all together and each alone, with as many steps for each client; every program plays every
    policy. In the quick form all programs are plain."""
    commands = {name: write_program(folder, "plain" if quick else name) for name in LIBRARIES}
    clients = dict(enumerate(commands.values()))
    harness = {"command": clients[0], "clients": clients, "processes": 4, "evaluate": False}
    run = {**RUN, "agent": {**RUN["agent"], "harness": harness}}
    source = folder / "run.yaml"
    source.write_text(json.dumps(run), "utf-8")
    steps = RUN["algorithm"]["local_steps"]
    alone = {
        f"{name} alone": (f"algorithm={{name: local, client: {client}, local_steps: {steps}}}",)
        for client, name in enumerate(LIBRARIES)
    }
    looks = (8, 1) if quick else (HELD_OUT, REPEATS)
    columns = {name: make_program_column(command, *looks) for name, command in commands.items()}
    table = ExperimentTable(
        folder.name,
        dict.fromkeys((TOGETHER, *alone), str(source)),
        columns,
        [*((TOGETHER, row) for row in alone), *combinations(alone, 2)],
        PLANNED,
        processes=1,
        row_changes=alone,
    )
    return table.make_quick([TOGETHER, next(iter(alone))], (*QUICK, "evaluation.tasks=8"), seeds=1) if quick else table


def run_programs(quick: bool = False) -> list[Measurement]:
    """Clients whose programs differ, all together and each alone: the success of each policy, played by each program."""
    if not quick:
        _need("langchain_openai", "smolagents")
    folder = run_folder("gateway-programs-quick" if quick else "gateway-programs")
    table = make_programs_table(folder, quick)
    rows = run_table(table, folder)
    found = [_measure(f"{row.name}: played by {name}", values) for row in rows for name, values in row.values.items()]
    for row, base in table.pairs:
        if base in table.rows:
            gains = difference(rows, row, base)
            found += [_measure(f"{row} - {base}: played by {name}", gains[name]) for name in gains]
    return found
