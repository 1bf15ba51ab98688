"""The learning rates of a suite's methods, chosen alike: as many trials for each, in worlds that are not reported, on `val`.

    leaderboard/tuning/SUITE.json    every trial with its success, and the rate that is chosen for each entry
    runs/tuning/SUITE/               the runs; finished ones are not repeated

A trial is a run of the suite's configuration in a world of its own, under one of `RATES`; its number is success on the suite's
selection split after the last round. An entry's rate is the one with the highest mean over worlds and scenarios, the smaller of
equals. Tuned are all baselines that train; of a method under several streams the first. The suite's baselines then carry the
chosen rates (`learning.learning_rate`), which a test compares with the file.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.measurement import Measurement
from benchmarks.tables import RUNS, mean
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import write_atomic
from fedagentgym.base.process import count_usable_cores
from fedagentgym.base.progress import set_verbosity, show_progress
from fedagentgym.experiment.config import RunConfig, load_config
from fedagentgym.experiment.opened import prepare_agents
from fedagentgym.experiment.run import finish_or_read
from fedagentgym.leaderboard.entries import Entry, list_baselines
from fedagentgym.leaderboard.suite import Suite, check_budget, load_suite, make_config

SUITE = "methods-tiny-skills-v2"
RATES = (2.5e-4, 5.0e-4, 1.0e-3, 2.0e-3)
SEEDS = (100, 101)
"""Seeds of the trials, and so their worlds: none of a suite's."""
RATE = "learning.learning_rate"


@dataclass(frozen=True)
class Trial:
    """A run of an entry under one rate, with its success once it is finished."""

    entry: str
    rate: float
    seed: int
    scenario: str
    success: float = 0.0


def tune_skills(quick: bool) -> list[Measurement]:
    """Choose the learning rates of the methods on Skills; hours of two cores."""
    if quick:
        return tune(load_suite("smoke"), RUNS / "tuning-quick", (1e-3, 2e-3), SEEDS[:1])
    return tune(load_suite(SUITE), ROOT / "leaderboard" / "tuning")


def tune(suite: Suite, folder: Path, rates: Sequence[float] = RATES, seeds: Sequence[int] = SEEDS) -> list[Measurement]:
    """Play every trial, and write them with the chosen rates into the folder."""
    trials = list_trials(suite, rates, seeds)
    entries = {entry.name: entry for entry in list_baselines(suite)}
    configs = [make_trial_config(suite, entries[trial.entry], trial) for trial in trials]
    prepare_agents(configs)
    found = []
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(count_usable_cores(), context, set_verbosity, ("quiet",)) as pool,
        show_progress(f"tuning {suite.name}", total=len(trials)) as bar,
    ):
        for trial, success in zip(trials, pool.map(play, [config.plain() for config in configs]), strict=True):
            found.append(Trial(trial.entry, trial.rate, trial.seed, trial.scenario, success))
            bar.advance(entry=trial.entry)
    write_tuning(suite, found, folder)
    return [
        Measurement(f"{name}: success on {suite.selection.split} at the rate {rate:g}", measure(found, name, rate), "")
        for name, rate in choose_rates(found).items()
    ]


def list_trials(suite: Suite, rates: Sequence[float] = RATES, seeds: Sequence[int] = SEEDS) -> list[Trial]:
    """Every trial of a suite, world by world; as many for each entry that trains."""
    if shared := sorted(set(seeds) & set(suite.seeds)):
        raise DataError(f"{suite.name} reports the seeds {shared}: rates are chosen in other worlds")
    tuned = [
        entry.name
        for entry in list_baselines(suite)
        if not entry.stream and make_config(suite, next(iter(suite.scenarios)), entry.changes).federation.rounds
    ]
    return [
        Trial(name, rate, seed, scenario)
        for seed in seeds
        for scenario in suite.scenarios
        for name in tuned
        for rate in rates
    ]


def make_trial_config(suite: Suite, entry: Entry, trial: Trial) -> RunConfig:
    """The configuration of a trial: the suite's, with another rate, in another world, evaluated at the ends alone."""
    config = make_config(suite, trial.scenario, [*entry.changes, f"{RATE}={trial.rate}"], seed=trial.seed)
    check_budget(suite, config)
    name = f"{trial.entry}-{trial.scenario}-{trial.rate:g}-seed{trial.seed}"
    folder = json.dumps(str(RUNS / "tuning" / suite.name / name))
    return load_config(config, [f"evaluation.every={max(1, config.federation.rounds)}", f"output.folder={folder}"])


def play(config: Mapping[str, Any]) -> float:
    """The success of a trial's last policy: of the finished run, or after playing it."""
    success = finish_or_read(load_config(config), (), None).record["final"]["overall"]["success"]["mean"]
    return float(success)


def measure(trials: Sequence[Trial], entry: str, rate: float) -> float:
    """The mean success of an entry at a rate, over worlds and scenarios."""
    return mean([trial.success for trial in trials if (trial.entry, trial.rate) == (entry, rate)])


def choose_rates(trials: Sequence[Trial]) -> dict[str, float]:
    """The rate of each entry with the highest mean success, the smaller of equals."""
    rates = sorted({trial.rate for trial in trials})
    names = dict.fromkeys(trial.entry for trial in trials)
    return {name: max(rates, key=lambda rate: (measure(trials, name, rate), -rate)) for name in names}


def write_tuning(suite: Suite, trials: Sequence[Trial], folder: Path) -> None:
    """Write the trials of a suite and what is chosen."""
    plain = {"suite": suite.name, "chosen": choose_rates(trials), "trials": [asdict(trial) for trial in trials]}
    write_atomic(folder / f"{suite.name}.json", json.dumps(plain, indent=1, sort_keys=True) + "\n")
