"""Learning rates are chosen by as many trials for each method, in worlds that are not reported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import tuning
from benchmarks.tuning import RATES, SEEDS, SUITE, Trial, choose_rates, list_trials
from fedagentgym.base.errors import DataError
from fedagentgym.leaderboard.entries import list_baselines, make_baseline
from fedagentgym.leaderboard.suite import Suite, load_suite, make_config

KEPT = sorted((Path(__file__).parents[2] / "leaderboard" / "tuning").glob("*.json"))


def read_tuning(path: Path) -> tuple[str, list[Trial]]:
    """The suite and the trials of a file, if as many were made of each entry and the chosen rates follow from them."""
    plain = json.loads(path.read_text())
    trials = [Trial(**trial) for trial in plain["trials"]]
    settings = {(trial.rate, trial.seed, trial.scenario) for trial in trials}
    for name in {trial.entry for trial in trials}:
        own = [(trial.rate, trial.seed, trial.scenario) for trial in trials if trial.entry == name]
        assert len(own) == len(settings) and set(own) == settings, name
    assert plain["chosen"] == choose_rates(trials)
    return plain["suite"], trials


def find_odd_rates(suite: Suite, chosen: Mapping[str, float]) -> dict[str, float]:
    """The baselines of a suite that do not carry their chosen rate, with the rate that they have."""
    found = {}
    for entry in list_baselines(suite):
        rate = make_config(suite, next(iter(suite.scenarios)), entry.changes).learning.learning_rate
        partner = next((name for name in suite.control or () if name != entry.name), "") if entry.stream else entry.name
        if rate != chosen.get(partner, rate):
            found[entry.name] = rate
    return found


def test_every_method_has_as_many_trials_in_worlds_of_their_own() -> None:
    suite = load_suite(SUITE)
    trials = list_trials(suite)
    counts = Counter(trial.entry for trial in trials)
    assert set(counts.values()) == {len(RATES) * len(SEEDS) * len(suite.scenarios)} and len(RATES) == 4
    assert set(suite.baselines) - set(counts) == {"zero-shot", "fedavg-again"}
    assert not set(SEEDS) & set(suite.seeds)
    with pytest.raises(DataError, match="rates are chosen in other worlds"):
        list_trials(suite, seeds=(3, 100))
    trial = next(one for one in trials if one.entry == "fedgrpo" and one.rate == RATES[0])
    config = tuning.make_trial_config(suite, make_baseline(suite, "fedgrpo"), trial)
    assert (config.learning.learning_rate, config.env.options["seed"], config.seed) == (RATES[0], 100, 100)
    assert config.evaluation is not None and config.evaluation.split == "val"


def test_the_best_rate_is_chosen_and_the_smaller_of_equals(tmp_path: Path) -> None:
    grid = [Trial(name, rate, seed, "s") for name in ("a", "b") for rate in (0.1, 0.2, 0.4) for seed in (1, 2)]
    success = {("a", 0.2): 0.7, ("a", 0.4): 0.7, ("b", 0.4): 0.1}
    trials = [replace(one, success=success.get((one.entry, one.rate), 0.0)) for one in grid]
    assert choose_rates(trials) == {"a": 0.2, "b": 0.4}
    suite = load_suite("smoke")
    tuning.write_tuning(suite, trials, tmp_path)
    place = tmp_path / "smoke.json"
    assert read_tuning(place) == ("smoke", trials)
    assert find_odd_rates(suite, {"fedagent": 1e-3}) == {}
    assert find_odd_rates(suite, {"fedagent": 0.1}) == {"fedagent": 1e-3, "fedagent-again": 1e-3}


@pytest.mark.slow
def test_trials_are_played_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "RUNS", tmp_path)
    first = tuning.tune_skills(True)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert len(stamps) == 2 * 2 and tuning.tune_skills(True) == first
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    _, trials = read_tuning(tmp_path / "tuning-quick" / "smoke.json")
    assert {trial.entry for trial in trials} == {"fedagent"}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_suites_carry_the_rates_that_were_chosen(path: Path) -> None:
    name, trials = read_tuning(path)
    assert find_odd_rates(load_suite(name), choose_rates(trials)) == {}
