"""The merge table: one set of adapters from the clients, combined by every rule, and the success of each resulting policy.

    python -m benchmarks merge-table

In every world the clients train under FedIT, and the adapters that they return in a round are kept. Then every rule combines the
same adapters, and its policy plays the same held-out tasks. So rows differ only in the rule, and not in chance. The situations
are the first and the third round of 20 local steps, one round of 80, a separate matrix A for each client, different ranks, and
clients that are alike. Hypotheses, set-up and table: docs/experiments/averaging-lora.md.

`length` is the length of the policy's change, and `gap` its distance from the mean of the clients' changes. The unit of both is
the length of this mean. Both are computed over all adapted layers together.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.findings import Findings, list_measurements, write_tables
from benchmarks.measurement import Measurement
from benchmarks.skills_worlds import make_world
from fedagentgym.agents.model.names import BASE
from fedagentgym.algorithms.averaging import AcceptedReply
from fedagentgym.algorithms.base import get_algorithm_class
from fedagentgym.algorithms.factors import read_changes, read_pairs
from fedagentgym.base.progress import show_progress
from fedagentgym.base.streams import derive
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.opened import Run
from fedagentgym.federation.algorithm import FederationSettings, Round, ServerState
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.message import Parameters
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.evaluation import evaluate
from fedagentgym.learning.settings import EvaluationSettings

PAGE = ROOT / "docs" / "experiments" / "averaging-lora.md"
PLACE = "merge-table"
SOURCE = "tiny-skills:skills-32"
WORLDS = (200, 201, 202, 203)
"""Worlds in which no suite chooses settings or reports results."""
RATE = 0.004
START, MEAN = "start", "FedIT"
AS_LONG = "exact mean, as long as RAM"
"""The row whose step is as long as that of `RAM`."""
RAM = "RAM, density 0.2"
RULES: Mapping[str, Mapping[str, Any]] = {
    MEAN: {"name": "fedit"},
    "FedIT x 2": {"name": "fedit", "server_step": 2.0},
    "exact mean": {"name": "fedex-lora"},
    "exact mean x 2": {"name": "fedex-lora", "server_step": 2.0},
    "exact mean x 4": {"name": "fedex-lora", "server_step": 4.0},
    "exact mean x 8": {"name": "fedex-lora", "server_step": 8.0},
    "rank-4 SVD": {"name": "flexlora"},
    "RAM, density 0.05": {"name": "ram", "density": 0.05},
    RAM: {"name": "ram", "density": 0.2},
    "RAM+, density 0.2": {"name": "ram", "density": 0.2, "strength": 0.1},
    AS_LONG: {"name": "fedex-lora"},
}
"""The exact mean is the policy of FedEx-LoRA, of FLoRA and of merging, which differ only in the next round."""
OWN_A = {name: {**RULES[name], "init": "each"} for name in (MEAN, "exact mean", "rank-4 SVD")}
RANKS = {"ranks": [1, 2, 4, 8]}
UNLIKE = {
    MEAN: {"name": "fedit", **RANKS},
    "FedIT, by holders": {"name": "fedit", "pad": "holders", **RANKS},
    "exact mean": {"name": "fedex-lora", **RANKS},
    "rank-8 SVD": {"name": "flexlora", **RANKS},
}


@dataclass(frozen=True)
class Situation:
    """A run of FedIT, the rounds whose adapters are kept (number -> name), and the rules that combine these adapters."""

    kept: Mapping[int, str]
    rules: Mapping[str, Mapping[str, Any]]
    steps: int = 20
    training: Mapping[str, Any] = field(default_factory=dict)
    source: str = SOURCE
    rank: int = 4


SITUATIONS = (
    Situation({1: "first round", 3: "third round"}, RULES),
    Situation({1: "one round of 80"}, RULES, steps=80),
    Situation({1: "an A for each"}, OWN_A, training={"init": "each"}),
    Situation({1: "ranks 1, 2, 4, 8"}, UNLIKE, training=RANKS, rank=8),
    Situation({1: "clients alike"}, RULES, source=f"{SOURCE},iid"),
)
QUICK = Situation({1: "first round"}, RULES, steps=1, source="tiny-skills")
QUICK_CHANGES = ("warm_start=null", "learning={group_size: 4, tasks_per_step: 2}")


class Step(NamedTuple):
    """The length of a round's change of the policy and its distance from the mean, in lengths of the mean."""

    length: float
    gap: float


class Combined(NamedTuple):
    """The arguments of one call of `combine`, with the updates as arrays, and the state that it returned."""

    state: ServerState
    used: Sequence[AcceptedReply]
    updates: Sequence[Parameters]
    this_round: Round
    after: ServerState


class Outcome(NamedTuple):
    """The success of a rule's policy, the length of its change, and its gap to the exact mean."""

    success: float
    length: float
    gap: float


def run(quick: bool = False) -> list[Measurement]:
    """Success of every rule on one set of adapters, in four worlds; about ten minutes of one core. Writes the page."""
    worlds = (0,) if quick else WORLDS  # the agent of world 0 comes with the package
    situations = (QUICK,) if quick else SITUATIONS
    found: dict[str, dict[str, list[Outcome]]] = {}
    total = len(worlds) * len(situations)
    with show_progress("merge table", total=total) as bar:
        for world in worlds:
            for one in situations:
                for place, outcomes in measure(one, world, quick=quick).items():
                    for rule, outcome in outcomes.items():
                        found.setdefault(place, {}).setdefault(rule, []).append(outcome)
                bar.advance(world=str(world))
    findings = {place: tabulate(rows) for place, rows in found.items()}
    if not quick:
        write_tables(PAGE, PLACE, findings)
    return list_measurements(findings)


def measure(situation: Situation, world: int, *, quick: bool = False) -> dict[str, dict[str, Outcome]]:
    """The outcome of every rule in a world, by the name of the round whose adapters are combined."""
    config = make_config(situation.source, world, rank=situation.rank, changes=QUICK_CHANGES if quick else ())
    with tempfile.TemporaryDirectory() as scratch:
        opened = Run.open(config, Path(scratch))
        plain = {**RULES[MEAN], "local_steps": situation.steps, **situation.training}
        rounds = play_rounds(plain, opened, seed=world, rounds=max(situation.kept), folder=Path(scratch))
        env = open_env(config.env.id, **{**opened.runtime.client_split.options, "split": "test"})
        tasks = EvaluationSettings(split="test", tasks=8 if quick else 640, temperature=1.0, parallel_episodes=320)
        return {
            name: dict(merge(opened, rounds[number], situation.rules, env, tasks, world))
            for number, name in situation.kept.items()
        }


def play_rounds(plain: Mapping[str, Any], run: Run, *, seed: int, rounds: int, folder: Path) -> dict[int, Combined]:
    """Train with the algorithm of some settings for a number of rounds; returns what it combined in each round."""
    cls: Any = get_algorithm_class(plain)
    combined: dict[int, Combined] = {}

    class Recorder(cls):  # type: ignore[misc]
        def combine(
            self, state: ServerState, used: Sequence[AcceptedReply], updates: Iterator[Parameters], this_round: Round
        ) -> ServerState:
            held = [{name: np.array(value) for name, value in update.items()} for update in updates]
            after: ServerState = super().combine(state, used, iter(held), this_round)
            combined[this_round.number] = Combined(state, used, held, this_round, after)
            return after

    algorithm = Recorder(cls.settings_class.load(dict(plain), "algorithm"), run.runtime)
    plan = ServerConfig(folder, seed, FederationSettings(rounds=rounds))
    run_rounds(algorithm, SequentialBackend(algorithm, folder / "states"), plan)
    return combined


def make_config(source: str, world: int, *, rank: int, changes: Sequence[str]) -> RunConfig:
    """The configuration of a run in a world, with an adapter of a rank and no evaluation."""
    adapter = f"agent.adapter={{rank: {rank}, alpha: {2 * rank}}}"
    always = (*make_world(world, source), adapter, f"learning.learning_rate={RATE}", "evaluation=null")
    return load_config(source, [*always, *changes])


def merge(
    run: Run,
    kept: Combined,
    rules: Mapping[str, Mapping[str, Any]],
    env: TextEnv,
    tasks: EvaluationSettings,
    world: int,
) -> Iterator[tuple[str, Outcome]]:
    """The outcome of the policy before the round, and of every rule's policy."""
    seed = derive(world, "merge")
    success = evaluate(run.runtime.load_weights(kept.state.parameters), env, tasks, seed=seed).overall["success"].mean
    yield START, Outcome(success, 0.0, 1.0)
    longest = 1.0
    for name, plain in rules.items():
        given = {**plain, "server_step": longest} if name == AS_LONG else dict(plain)
        cls = get_algorithm_class(given)
        algorithm: Any = cls(cls.settings_class.load(given, "algorithm"), run.runtime)
        after = algorithm.combine(kept.state, kept.used, iter(kept.updates), kept.this_round)
        length, gap = find_step(kept.state, kept.updates, after)
        longest = length if name == RAM else longest
        player = run.runtime.load_weights(algorithm.policy_parameters(after))
        yield name, Outcome(evaluate(player, env, tasks, seed=seed).overall["success"].mean, length, gap)


def find_step(before: ServerState, updates: Sequence[Parameters], after: ServerState) -> Step:
    """The step that a round made, against the mean of what its clients made of the adapter that they began with."""
    start = read_products(ServerState(before.parameters))
    mean = np.mean([read_products(ServerState(update)) - start for update in updates], axis=0)
    moved = read_products(after) - read_products(before)
    unit = np.linalg.norm(mean)
    return Step(float(np.linalg.norm(moved) / unit), float(np.linalg.norm(moved - mean) / unit))


def read_products(state: ServerState) -> NDArray[np.float64]:
    """The change that a state makes to the frozen weights of all layers, divided by the scale of the adapter."""
    base = read_changes(state.memory.get(BASE, {}))
    parts = [pair.product + base.get(layer, 0.0) for layer, pair in sorted(read_pairs(state.parameters).items())]
    return np.concatenate([part.ravel() for part in parts])


def tabulate(rows: Mapping[str, Sequence[Outcome]]) -> Findings:
    """Means over worlds, the success in each, and its difference to FedIT with the standard error of the mean."""
    columns = {"success": ".3f", "in each world": "", "less FedIT": "+.3f", "standard error": ".3f"}
    columns |= {"length": ".2f", "gap": ".2f"}
    base = np.array([one.success for one in rows[MEAN]])
    table: dict[str, tuple[float | str, ...]] = {}
    for name, outcomes in rows.items():
        success = np.array([one.success for one in outcomes])
        error = float(np.std(success - base, ddof=1) / math.sqrt(len(base))) if len(base) > 1 else 0.0
        shown = ", ".join(f"{value:.3f}" for value in success)
        means = (float(np.mean([one.length for one in outcomes])), float(np.mean([one.gap for one in outcomes])))
        table[name] = (float(success.mean()), shown, float((success - base).mean()), error, *means)
    return Findings("rule", columns, table)
