"""`bench tune`: one search for every row, in worlds that are not reported, that ends alike whenever it is killed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.escape import escape_markdown
from fedagentgym.cli.main import main
from fedagentgym.federation.commits import CommitStore
from fedagentgym.leaderboard import play, tune
from fedagentgym.leaderboard.entries import list_baselines, make_baseline
from fedagentgym.leaderboard.grid import Choice, Trial, Tuning, choose_trial
from fedagentgym.leaderboard.page.build import build_site
from fedagentgym.leaderboard.play import open_entry
from fedagentgym.leaderboard.results import Result, pack
from fedagentgym.leaderboard.suite import (
    Suite,
    list_suites,
    load_suite,
    load_untuned,
    make_config,
    make_tuning,
    open_scenario,
)
from fedagentgym.leaderboard.tune import list_edges
from fedagentgym.leaderboard.verify import verify
from fedagentgym.runs.archive import Archive, write_archive
from fedagentgym.runs.claims import RefutedError
from fedagentgym.runs.folder import RunFolder, format_document

SAMPLE: dict[str, Any] = {
    "name": "sample",
    "track": "methods",
    "title": "A search of seconds",
    "config": {
        "env": {"id": "fedagentgym/Guess-v0"},
        "partition": {"sampler": "uniform", "clients": 2, "tasks_per_client": 8},
        "agent": "untrained-tiny",
        "learning": {"tasks_per_step": 2, "group_size": 2},
        "algorithm": {"name": "fedagent", "local_steps": 2},
        "federation": {"rounds": 1},
    },
    "world": ["env.options.seed={seed}", "partition.seed={seed}"],
    "scenarios": {"uniform": {}},
    "seeds": [0],
    "selection": {"split": "val", "tasks": 4, "temperature": 1.0},
    "ranking": {"split": "test", "tasks": 4, "temperature": 1.0},
    "ranked_round": "last",
    "baselines": {
        "zero-shot": {"changes": ["algorithm=zero-shot", "federation.rounds=0"]},
        "fedagent": {"title": "FedAgent"},
        "again": {"title": "again", "stream": 1},
        "fedprox": {"title": "FedProx", "changes": ["algorithm={name: fedprox, local_steps: 2}"]},
    },
    "control": ["fedagent", "again"],
    "tuning": {
        "worlds": [100, 101],
        "learning_rate": [0.001, 0.01],
        "step_size": [0.5, 1],
        "rows": {"fedprox": {"step_size": [1, 2], "knob": "algorithm.proximal", "values": [0.001, 0.1]}},
    },
}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the suite, its trials and what was chosen."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "sample.yaml").write_text(yaml.safe_dump(SAMPLE))
    assert main(make_line(folder)) == 0
    return folder


def make_line(folder: Path, *more: str) -> list[str]:
    places = ["--out", str(folder / "runs"), "--store", str(folder / "results")]
    return ["bench", "tune", str(folder / "sample.yaml"), *places, "--workers", "1", *more]


def read_choice(folder: Path) -> dict[str, Any]:
    """What was chosen, without the digests of archives, which hold times."""
    plain: dict[str, Any] = json.loads((folder / "sample.tuned.json").read_text())
    for row in plain["rows"].values():
        for trial in row["trials"]:
            del trial["result"]
    return plain


# ---- the grid -----------------------------------------------------------------------------------------------------------


def test_every_row_is_tried_under_the_same_rates_with_as_many_episodes() -> None:
    suite = Suite.load(SAMPLE)
    settings = tune.list_settings(suite)
    assert Counter(one.row for one in settings) == {"fedagent": 4, "fedprox": 8}  # neither without rounds nor again
    rates = {row: {one.changes[0] for one in settings if one.row == row} for row in ("fedagent", "fedprox")}
    assert rates["fedagent"] == rates["fedprox"] == {"learning.learning_rate=0.001", "learning.learning_rate=0.01"}
    for one in settings:
        config = make_config(make_tuning(suite), "uniform", one.entry.changes, seed=100)
        assert config.learning.tasks_per_step * config.algorithm["local_steps"] == 4
        assert config.env.options["seed"] == 100 and config.ranking is not None and config.ranking.split == "val"
    assert settings[0].entry.name == "fedagent.rate-0.001.step-0.5"
    assert settings[-1].changes == (
        "learning.learning_rate=0.01",
        "learning.tasks_per_step=4",
        "algorithm.local_steps=1",
        "algorithm.proximal=0.1",
    )


def test_a_row_may_have_rates_of_another_size_but_as_many() -> None:
    own = {"rows": {"fedprox": {"learning_rate": [0.1, 0.2]}}}
    suite = Suite.load({**SAMPLE, "tuning": {**SAMPLE["tuning"], **own}})
    rates = Counter((one.row, one.changes[0].partition("=")[2]) for one in tune.list_settings(suite))
    fewer = {("fedagent", "0.001"), ("fedagent", "0.01"), ("fedprox", "0.1"), ("fedprox", "0.2")}
    assert set(rates) == fewer and set(rates.values()) == {2}


def test_settings_may_be_tried_in_some_scenarios_whose_worlds_are_listed() -> None:
    listed = {
        "changes": ["partition.tasks_per_client=6"],
        "worlds": {0: ["seed=7"], 100: ["partition.clients=3"], 101: []},
    }
    both = {"scenarios": {"uniform": {}, "few": listed}, "tuning": {**SAMPLE["tuning"], "scenarios": ["few"]}}
    suite = Suite.load({**SAMPLE, **both})
    trials = make_tuning(suite)
    assert list(trials.scenarios) == ["few"] and len(tune.list_settings(suite)) == 12
    clients = [make_config(trials, "few", seed=seed).partition.clients for seed in (100, 101)]
    assert clients == [3, 2] and make_config(suite, "uniform", seed=0).partition.tasks_per_client == 8
    for change, message in (
        ({"tuning": {**SAMPLE["tuning"], "scenarios": ["none"]}}, "tuning: 'none' is no scenario"),
        ({"seeds": [0, 1]}, "scenario 'few': worlds has no changes for world 1"),
        ({"world": []}, "worlds are of a suite with a `world`"),
        ({"secret": {"digest": "sha256:" + "0" * 64}}, "without a secret twin"),
    ):
        with pytest.raises(OptionError, match=re.escape(message)):
            Suite.load({**SAMPLE, **both, **change})


def test_a_search_changes_no_suite() -> None:
    bare = {key: value for key, value in SAMPLE.items() if key != "tuning"}
    assert Suite.load(bare).digest == Suite.load(SAMPLE).digest


MANY = pytest.mark.slow(reason="a hundred settings, each of which is a configuration")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[MANY] if name.startswith("averaging-lora") else [])
        for name in list_suites()
        if load_untuned(name).tuning is not None
    ],
)
def test_the_grids_of_the_package_can_be_played(name: str) -> None:
    suite = load_suite(name)
    assert suite.tuning is not None and len(suite.tuning.worlds) >= 2
    settings = tune.list_settings(suite)
    trained = [
        entry.name
        for entry in list_baselines(suite)
        if not entry.stream and make_config(suite, next(iter(suite.scenarios)), entry.changes).federation.rounds
    ]
    counts = Counter(one.row for one in settings)
    fewest = len(suite.tuning.learning_rate) * len(suite.tuning.step_size)
    assert set(counts) == set(trained) and min(counts.values()) >= fewest
    assert len({one.entry.name for one in settings}) == len(settings)


def list_newest() -> list[str]:
    """The newest versions of the suites that compare methods and do not copy a paper's protocol."""
    newest = {name.rpartition("-v")[0]: name for name in sorted(list_suites()) if "-v" in name}
    return [name for place, name in newest.items() if not place.startswith(("agents", "paper"))]


@pytest.mark.parametrize("name", list_newest())
def test_every_own_suite_of_methods_names_one_grid(name: str) -> None:
    suite = load_untuned(name)
    assert suite.track == "methods" and suite.tuning is not None


COMPARES_NUMBERS_OF_TASKS = "skills-participation-v1"


@pytest.mark.parametrize(
    "name",
    [name for name in list_newest() if name != COMPARES_NUMBERS_OF_TASKS and len(load_untuned(name).scenarios) > 1],
)
def test_clients_have_as_many_tasks_in_every_scenario(name: str) -> None:
    suite = load_untuned(name)
    tasks: list[int] = []
    for scenario in suite.scenarios:
        opened = open_scenario(suite, scenario)
        assert opened.client_split is not None
        tasks.append(sum(len(client.tasks) for client in opened.client_split.clients))
    assert min(tasks) >= 0.97 * max(tasks)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"worlds": [0, 100]}, "the world 0 is reported: settings are chosen in other worlds"),
        ({"worlds": [100, 100]}, "worlds are different seeds"),
        ({"learning_rate": [0.1, 0.01]}, "learning_rate holds numbers above 0 in rising order"),
        ({"step_size": [0, 1]}, "step_size holds numbers above 0 in rising order"),
        ({"rows": {"fedprox": {"step_size": [1]}}}, "'fedprox' has 1 step sizes, every row has as many as the suite"),
        ({"rows": {"fedprox": {"learning_rate": [1]}}}, "'fedprox' has 1 rates, every row has as many as the suite"),
        ({"rows": {"fedprox": {"learning_rate": [1, 0.1]}}}, "learning_rate holds numbers above 0 in rising order"),
        ({"rows": {"again": {}}}, "'again' is no baseline that can be tuned"),
        ({"rows": {"fedprox": {"knob": "algorithm.proximal"}}}, "knob and values belong together"),
        ({"rows": {"fedprox": {"knob": "learning.learning_rate", "values": [1]}}}, "is tried of every row already"),
        ({"rows": {"fedprox": {"knob": "algorithm.proximal", "values": [1, 1]}}}, "a value is named twice"),
    ],
)
def test_a_grid_that_is_not_fair_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        Suite.load({**SAMPLE, "tuning": {**SAMPLE["tuning"], **changes}})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tuning": {**SAMPLE["tuning"], "step_size": [0.25, 1]}}, "2 steps of 2 tasks cannot be made 0.25 times as"),
        ({"tuning": None}, "sample has no grid"),
        ({"budget": {"episodes": 8}}, "at most 8 episodes"),
    ],
)
def test_a_grid_that_cannot_be_played_is_refused_before_it_begins(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        tune.list_settings(Suite.load({**SAMPLE, **changes}))


def test_the_rates_of_the_first_search_are_those_of_its_suite() -> None:
    """It tried rates alone, and kept no episodes; until the grid is searched, rows are played with what it chose."""
    suite = load_suite("methods-tiny-skills-v2")
    place = Path(__file__).parents[2] / "leaderboard" / "tuning" / f"{suite.name}.json"
    chosen: dict[str, float] = json.loads(place.read_text())["chosen"]
    assert suite.chosen or chosen == {
        name: make_config(suite, "uniform", suite.baselines[name].changes).learning.learning_rate for name in chosen
    }


def test_of_equals_the_first_is_chosen() -> None:
    zeros = "sha256:" + 64 * "0"
    trials = [Trial(changes=(), mean=mean, runs=(mean,), result=zeros) for mean in (0.1, 0.1 + 0.2, 0.3, 0.2)]
    assert choose_trial(trials, "success") == 1 and choose_trial(trials[2:], "success") == 0
    assert choose_trial(trials, "turns") == 0  # of which fewer are better


# ---- what is chosen -----------------------------------------------------------------------------------------------------


def test_what_is_chosen_is_played_shown_and_verified(
    searched: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite = load_suite(searched / "sample.yaml")
    choice = read_choice(searched)
    for row, chosen in suite.chosen.items():
        tried = choice["rows"][row]["trials"]
        assert chosen.reached.mean == max(one["mean"] for one in tried) and chosen.settings == len(tried)
        entry = make_baseline(suite, row)
        assert entry.changes == (*suite.baselines[row].changes, *chosen.changes)
        for trial in tried:
            assert trial["mean"] == pytest.approx(sum(trial["runs"]) / 2) and len(trial["runs"]) == 2
    assert make_baseline(suite, "again").changes == make_baseline(suite, "fedagent").changes
    line = ["bench", "run", str(searched / "sample.yaml"), "--out", str(tmp_path / "runs"), "--workers", "1"]
    assert main([*line, "--baseline", "fedagent", "--baseline", "zero-shot"]) == 0
    for name in ("fedagent", "zero-shot"):
        pack(Result(tmp_path / "runs" / "sample" / name), tmp_path / "packed" / f"{name}.zip")
        assert verify(tmp_path / "packed" / f"{name}.zip", suite=suite).replayed
    build_site([tmp_path / "packed"], tmp_path / "site")
    table, page = ((tmp_path / "site" / name).read_text() for name in ("sample-v1.md", "index.html"))
    shown = str(suite.chosen["fedagent"])
    assert (
        shown.endswith(", best of 4") and escape_markdown(shown) in table and shown in page and "not searched" in table
    )
    assert "chosen from one grid by success on val in the worlds 100, 101" in table


def test_the_trials_are_results_that_anyone_can_verify(searched: Path, tmp_path: Path) -> None:
    """An archive a row, which any zip tool unpacks into the result of every setting."""
    suite, store = load_suite(searched / "sample.yaml"), searched / "results" / "sample-tuning"
    assert sorted(place.name for place in store.iterdir()) == ["fedagent.zip", "fedprox.zip"]
    choice = Choice.load(json.loads((searched / "sample.tuned.json").read_text()))
    for row, tried in choice.rows.items():
        with zipfile.ZipFile(store / f"{row}.zip") as inside:
            inside.extractall(tmp_path / row)
        names = [one.entry.name for one in tune.list_settings(suite) if one.row == row]
        assert len(list((tmp_path / row).glob("*.zip"))) == len(names)
        for trial, name in zip(tried.trials, names, strict=True):
            assert Result(tmp_path / row / f"{name}.zip").digest == trial.result
    first = tmp_path / "fedagent" / f"{tune.list_settings(suite)[0].entry.name}.zip"
    assert verify(first, suite=suite).result == choice.rows["fedagent"].trials[0].result


def test_a_finished_search_plays_nothing_and_chooses_the_same(
    searched: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (searched / "sample.tuned.json").read_bytes()
    monkeypatch.setattr(play, "finish_or_read", lambda *given, **named: pytest.fail("a run was played"))
    assert main(make_line(searched, "--json")) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (searched / "sample.tuned.json").read_bytes() == before and set(plain["rows"]) == {"fedagent", "fedprox"}


def test_a_choice_that_does_not_follow_is_refused(
    searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, tuned = tmp_path / "sample.yaml", tmp_path / "sample.tuned.json"
    plain = {**SAMPLE, "tuning": {**SAMPLE["tuning"], "worlds": [100, 102]}}
    place.write_text(yaml.safe_dump(plain))
    shutil.copy(searched / "sample.tuned.json", tuned)
    with pytest.raises(DataError, match=r"under another definition of the suite, its grid or its rows: remove it"):
        load_suite(place)
    place.write_text(yaml.safe_dump(SAMPLE))
    found = Choice.load(json.loads(tuned.read_text()))
    row = found.rows["fedagent"]
    other = row.model_copy(update={"chosen": (row.chosen + 1) % len(row.trials)})
    tuned.write_text(format_document(found.model_copy(update={"rows": {"fedagent": other}})))
    with pytest.raises(DataError, match="the chosen setting of 'fedagent' is not the best one"):
        load_suite(place)
    assert main(["bench", "show", str(place)]) == 2 and "not the best one" in capsys.readouterr().err


def test_a_trial_with_another_content_is_not_chosen_from(searched: Path, tmp_path: Path) -> None:
    shutil.copytree(searched, tmp_path / "copy")
    suite, store = load_suite(tmp_path / "copy" / "sample.yaml"), tmp_path / "copy" / "results"
    whole = store / "sample-tuning" / "fedagent.zip"
    names = [f"{one.entry.name}.zip" for one in tune.list_settings(suite) if one.row == "fedagent"]
    trials = {name: Archive(whole).read(name) for name in names}

    def replace_first(data: bytes) -> None:
        whole.unlink()
        write_archive(whole, {**trials, names[0]: data}, [])

    replace_first(trials[names[1]])
    with pytest.raises(OptionError, match=f"{re.escape(names[0])} is another setting than FedAgent"):
        tune.tune(suite, tmp_path / "copy" / "runs", store, 1)
    other = make_tuning(Suite.load({**SAMPLE, "changes": ["learning.group_size=3"]}))
    entry = tune.list_settings(suite)[0].entry
    opened, packed = open_entry(other, entry, tmp_path / "other"), tmp_path / "packed.zip"
    play.play([opened], 1)
    pack(Result(opened.folder), packed)
    replace_first(packed.read_bytes())
    with pytest.raises(RefutedError, match="the suite is sample-tuning"):
        tune.tune(suite, tmp_path / "copy" / "runs", store, 1)
    whole.unlink()
    write_archive(whole, {name: trials[name] for name in names[1:]}, [])
    with pytest.raises(DataError, match=f"holds no {re.escape(names[0])}"):
        tune.tune(suite, tmp_path / "copy" / "runs", store, 1)


def test_the_command_line_is_checked(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line, problem in (
        (make_line(searched, "--row", "fedavg"), "row of sample that is tuned 'fedavg'"),
        (
            ["bench", "tune", "smoke"],
            "smoke belongs to the package: name a file for the chosen settings, --chosen smoke.tuned.json",
        ),
        (["bench", "tune", "agents-tiny-v1", "--chosen", "x.json"], "agents-tiny-v1 has no grid"),
    ):
        assert main(line) == 2
        assert problem in capsys.readouterr().err


# ---- killed -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing in the package catches it."""


KILLS = (
    *(("exchange", 1), ("exchange", 3), ("write", 1), ("write", 2), ("write_record", 1)),
    *(("write", 3), ("write_record", 2), ("exchange", 6), ("write_archive", 1), ("verify", 5)),
)
"""A function, and which of its calls is not made."""


def test_a_search_that_is_stopped_ten_times_chooses_the_same(
    searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a round, before a run is finished, between a run and its archive, between the archives of settings and of
    rows, and while it verifies; row by row."""
    (tmp_path / "sample.yaml").write_text(yaml.safe_dump(SAMPLE))
    due: dict[str, int] = {}

    def kill_at(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            name = function.__name__
            due[name] = due.get(name, 0) - 1
            if due[name] == 0:
                raise Killed
            return function(*given, **named)

        return call

    monkeypatch.setattr(CommitStore, "write", kill_at(CommitStore.write))
    monkeypatch.setattr(RunFolder, "write_record", kill_at(RunFolder.write_record))
    monkeypatch.setattr(play, "exchange", kill_at(play.exchange))
    monkeypatch.setattr(tune, "write_archive", kill_at(tune.write_archive))
    monkeypatch.setattr(tune, "verify", kill_at(tune.verify))
    suite = load_suite(tmp_path / "sample.yaml")
    assert tune.tune(suite, tmp_path / "runs", tmp_path / "results", 1, ["fedprox"]) is None
    for name, number in KILLS:
        due.clear()
        due[name] = number
        with pytest.raises(Killed):
            tune.tune(suite, tmp_path / "runs", tmp_path / "results", 1)
        assert not (tmp_path / "sample.tuned.json").exists()
    due.clear()
    assert main(make_line(tmp_path)) == 0
    assert read_choice(tmp_path) == read_choice(searched)


@pytest.mark.slow
def test_a_search_whose_process_is_killed_ten_times_chooses_the_same(searched: Path, tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_text(yaml.safe_dump(SAMPLE))
    line = [sys.executable, "-m", "fedagentgym", "-q", *make_line(tmp_path)]
    for number in range(10):
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        due = len(list(tmp_path.rglob("rounds/*"))) + 2  # wherever it is when two more rounds are written
        while process.poll() is None and len(list(tmp_path.rglob("rounds/*"))) < due + number % 3:
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert subprocess.run(line, check=False).returncode == 0
    assert read_choice(tmp_path) == read_choice(searched)


@pytest.mark.parametrize(
    ("knob", "values", "chosen", "edges"),
    [
        ("algorithm.server_step", [1, 1.5, 2], (0.1, 2), ["smallest learning_rate", "largest server_step"]),
        ("algorithm.server_step", [2, 1, 1.5], (0.2, 1), ["smallest server_step"]),
        ("algorithm.server_step", [1, 1.5, 2], (0.2, 1.5), []),
        ("algorithm.server_step", [1, 2], (0.2, 2), []),
        ("algorithm.keep_optimizer", [True, False], (0.4, True), ["largest learning_rate"]),
        ("algorithm.mode", ["a", "b", "c"], (0.2, "a"), []),
        ("algorithm.mode", [1, 2, None], (0.2, 1), []),
        ("algorithm.aggregation.learning_rate", [1, 2, 3], (0.2, 1), ["smallest algorithm.aggregation.learning_rate"]),
    ],
)
def test_a_choice_at_an_end_of_the_grid_is_told(
    knob: str, values: list[Any], chosen: tuple[float, Any], edges: Any
) -> None:
    rows = {"own": {"knob": knob, "values": values}}
    tuning = Tuning.load({"worlds": [1], "learning_rate": [0.1, 0.2, 0.4], "step_size": [0.5, 1], "rows": rows})
    points = [(one.learning_rate, one.value) for one in tuning.list_points("own")]
    suite, tried = SimpleNamespace(tuning=tuning), SimpleNamespace(chosen=points.index(chosen))
    assert list_edges(suite, SimpleNamespace(rows={"own": tried})) == {"own": edges}  # type: ignore[arg-type]
