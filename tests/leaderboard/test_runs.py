"""Runs of suites: the same records however many processes play them and whenever they are killed."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cells_again import play_again
from fedagentgym.agents.players.endpoint import EndpointError
from fedagentgym.base.encoding import file_digest
from fedagentgym.base.errors import DataError, OptionError, UnknownNameError
from fedagentgym.cli.main import main
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import train
from fedagentgym.leaderboard.cells import make_cell_config
from fedagentgym.leaderboard.compare import compare, load_played
from fedagentgym.leaderboard.costs import estimate_cost
from fedagentgym.leaderboard.entries import list_baselines, make_agent_entry, make_method_entry
from fedagentgym.leaderboard.ranking import compare_control
from fedagentgym.leaderboard.results import ResultFolder
from fedagentgym.leaderboard.runs import SuiteRun, load_run, open_run, pack_run, play_runs
from fedagentgym.leaderboard.site.build import build_site
from fedagentgym.leaderboard.site.page import find_paper
from fedagentgym.leaderboard.suite import (
    Suite,
    check_budget,
    list_suites,
    load_suite,
    make_config,
    open_scenario,
    parse_suite,
    to_yaml,
)
from fedagentgym.leaderboard.verify import verify
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.leaderboard import forger
from tests.leaderboard.samples import AGENTS_SUITE


def list_files(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedagentgym", "-q", *arguments]


def wait_for(root: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    while not list(root.glob(pattern)) and process.poll() is None:
        time.sleep(0.05)


@pytest.mark.slow
def test_two_workers_and_a_kill_change_nothing(honest_method: Path, tmp_path: Path) -> None:
    """One process played the honest result; two play this one, are killed with the second cell under way, and go on."""
    arguments = ["bench", "run", "smoke", "--baseline", "fedagent", "--out", str(tmp_path / "runs"), "--workers", "2"]
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, text=True)
    wait_for(tmp_path, "runs/cells/*/run/rounds/0001", process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1.0)  # workers notice within half a second that they are orphans
    run = tmp_path / "runs" / "smoke" / "fedagent"
    with pytest.raises(DataError, match=r"are not finished.*bench resume"):
        pack_run(load_run(run), tmp_path / "early")
    done = subprocess.run(command("bench", "resume", str(run)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert main(["bench", "pack", str(run), "--to", str(tmp_path / "results")]) == 0
    packed = tmp_path / "results" / "smoke" / "fedagent"
    assert list_files(packed) == list_files(honest_method)
    first, second = ResultFolder(packed).manifest, ResultFolder(honest_method).manifest
    assert first.model_copy(update={"made": second.made}) == second


def test_finished_cells_are_not_played_again(smoke: SuiteRun, capsys: pytest.CaptureFixture[str]) -> None:
    before = {cell.episodes_file: cell.episodes_file.stat().st_mtime_ns for cell in smoke.cells}
    play_runs([smoke])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert main(["bench", "status", str(smoke.folder), "--json"]) == 0
    states = json.loads(capsys.readouterr().out)[0]["cells"]
    assert set(states.values()) == {"finished"} and len(states) == 4


def test_a_suite_half_done_says_so_and_goes_on(
    smoke: SuiteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell is trained but not ranked, one is not there at all; the other two stay as they are."""
    shutil.copytree(smoke.folder.parent.parent, tmp_path / "runs")
    run = load_run(tmp_path / "runs" / "smoke" / "fedagent")
    expected = {cell.key: cell.episodes_file.read_bytes() for cell in run.cells}
    run.cells[1].episodes_file.unlink()
    shutil.rmtree(run.cells[3].folder)
    kept = [cell.episodes_file.stat().st_mtime_ns for cell in (run.cells[0], run.cells[2])]
    assert main(["bench", "status", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr().out
    assert "2 of 4 cells finished" in told
    assert re.search(rf"{run.cells[1].key} +round 2 of 2", told) and re.search(rf"{run.cells[3].key} +waiting", told)
    assert main(["bench", "resume", str(run.folder), "--workers", "1"]) == 0
    told = capsys.readouterr().err
    assert f"fedagent {run.cells[1].key}: finished; 1 cell left, about" in told
    assert f"fedagent {run.cells[3].key}: finished; 0 cells left" in told
    assert {cell.key: cell.episodes_file.read_bytes() for cell in run.cells} == expected
    assert [cell.episodes_file.stat().st_mtime_ns for cell in (run.cells[0], run.cells[2])] == kept


def test_two_entries_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    play_runs([open_run(AGENTS_SUITE, make_agent_entry({"name": "random"}, "mine"), tmp_path)], workers=1)
    with pytest.raises(OptionError, match="another entry of this name"):
        play_runs([open_run(AGENTS_SUITE, make_agent_entry({"name": "expert"}, "mine"), tmp_path)], workers=1)


def test_an_entry_without_a_finished_cell_is_replaced(tmp_path: Path) -> None:
    """A mistyped address or model leaves the entry's name free."""
    endpoint = {"name": "endpoint", "model": "m", "options": {"url": "http://127.0.0.1:9/v1"}}
    with pytest.raises(EndpointError, match="cannot be reached"):
        play_runs([open_run(AGENTS_SUITE, make_agent_entry(endpoint, "mine"), tmp_path)], workers=1)
    with pytest.raises(UnknownNameError, match="unknown agent"):
        play_runs([open_run(AGENTS_SUITE, make_agent_entry({"name": "rondam"}, "other"), tmp_path)], workers=1)
    assert not (tmp_path / AGENTS_SUITE.name / "other").exists()
    run = open_run(AGENTS_SUITE, make_agent_entry({"name": "random"}, "mine"), tmp_path)
    play_runs([run], workers=1)
    assert [cell.identity for cell in load_run(run.folder).cells] == [cell.identity for cell in run.cells]


def test_tasks_that_were_played_are_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that was stopped while episodes were being written ends with the same ones as a cell played in one go."""
    monkeypatch.setattr("fedagentgym.leaderboard.cells.TASKS_AT_A_TIME", {"program": 3})
    entry = make_agent_entry({"name": "random"})
    run = open_run(AGENTS_SUITE, entry, tmp_path / "a")
    play_runs([run], workers=1)
    cell = run.cells[0]
    whole = cell.episodes_file.read_text()
    lines = whole.splitlines(keepends=True)
    kept = "".join(lines[:6])
    (cell.folder / "played.json").write_text(json.dumps({"tasks": 3, "bytes": len(kept.encode())}))
    cell.episodes_file.write_text(kept + lines[6] + lines[7][:20])
    assert cell.describe_state() == "3 of 8 tasks"
    play_runs([run], workers=1)
    assert cell.episodes_file.read_text() == whole and cell.describe_state() == "finished"
    monkeypatch.setattr("fedagentgym.leaderboard.cells.TASKS_AT_A_TIME", {"program": 1000})
    other = open_run(AGENTS_SUITE, entry, tmp_path / "b")
    play_runs([other], workers=1)
    first, second = (tmp_path / "packed" / name for name in ("a", "b"))
    pack_run(other, second)
    pack_run(open_run(AGENTS_SUITE, entry, tmp_path / "a"), first)
    assert list_files(first) == list_files(second)


# ---- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_suites())
def test_every_suite_says_what_it_is(name: str) -> None:
    suite = load_suite(name)
    assert parse_suite(to_yaml(suite), "again") == suite and suite.title and suite.baselines
    listed = [one.scenarios[name] for one in suite.replicates.values() for name in suite.scenarios]
    assert len(listed) == len(suite.seeds) * len(suite.scenarios) * bool(suite.world)
    assert all(one.pool and one.task_ids for one in listed or suite.scenarios.values()) or suite.hardware
    if suite.track == "methods":
        for entry in list_baselines(suite):
            for scenario in suite.scenarios:
                check_budget(suite, make_config(suite, scenario, entry.changes))
    assert suite.paper is None or find_paper(suite.paper) is not None
    known = set(suite.baselines)
    assert all(one in known for pair in suite.pairs for one in pair)
    if suite.name.startswith("methods") and suite.ranked_round == "last":
        assert suite.control is not None and suite.power is not None
        assert suite.power < (0.15 if len(suite.seeds) >= 8 else 0.25)
        first, second = (make_cell_config(suite, scenario, one, 3) for one in list_baselines(suite, suite.control))
        assert {key for key, value in first.plain().items() if second.plain()[key] != value} == {"seed"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_suites() if name.startswith("paper-")])
def test_a_papers_suite_is_planned_without_its_data(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    suite = load_suite(name)
    assert main(["bench", "show", name, "--plan"]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert set(suite.baselines) <= set(rows) and len(rows) <= 10 + len(suite.baselines) * len(suite.scenarios)
    assert main(["bench", "show", name, "--plan", "--details"]) == 0
    told = capsys.readouterr().out
    for entry in suite.baselines:
        for scenario in suite.scenarios:
            assert f"{entry}, {scenario}, each of 3 seeds" in told
    assert told.count("tokens generated") == len(suite.baselines) * len(suite.scenarios)


def test_a_suite_whose_tasks_are_others_does_not_start() -> None:
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    plain["scenarios"]["uniform"]["pool"] = "sha256:" + "0" * 64
    with pytest.raises(DataError, match="these are other tasks"):
        open_scenario(Suite.load(plain), "uniform")


@pytest.mark.parametrize("change", ["env.options.seed=3", "evaluation.tasks=2", "seed=5", "partition.clients=2"])
def test_a_method_changes_nothing_of_the_suite(change: str) -> None:
    with pytest.raises(OptionError, match="belongs to the suite"):
        make_config(load_suite("smoke"), "uniform", [change])


def test_a_method_stays_within_the_budget(tmp_path: Path) -> None:
    entry = make_method_entry(["federation.rounds=9"], "long")
    with pytest.raises(OptionError, match="at most 2 rounds"):
        open_run(load_suite("smoke"), entry, tmp_path)
    suite = load_suite("methods-tiny-skills-v2")
    (changes,) = (one.changes for name, one in suite.baselines.items() if name == "fedgrpo")
    practised = [change.replace("expert_steps: 23", "expert_steps: 24") for change in changes]
    with pytest.raises(OptionError, match="at most 10,240 episodes with all preparation, this method plays 10,304"):
        make_cell_config(suite, "uniform", make_method_entry(practised, "practised"), 0)


def test_a_control_is_one_method_under_two_streams(tmp_path: Path) -> None:
    """And its last round is ranked, whichever did best on val."""
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    suite = Suite.load(
        {**plain, "seeds": [0], "ranked_round": "last", "scenarios": {"uniform": plain["scenarios"]["uniform"]}}
    )
    assert suite.control is not None and suite.digest != load_suite("smoke").digest
    runs = [open_run(suite, entry, tmp_path) for entry in list_baselines(suite, suite.control)]
    play_runs(runs, workers=1)
    folders = [tmp_path / "results" / run.entry.name for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        (cell,) = pack_run(run, folder).cells
        assert cell.chosen_round == 2
        assert {claim.name: claim.status for claim in verify(folder, suite=suite).claims}["selection"] == "proven"
    assert [ResultFolder(folder).configs.cells[0].config["seed"] for folder in folders] == [0, 1_000_000]
    entries = [ResultFolder(folder) for folder in folders]
    assert len({entry.manifest.cells[0].policy for entry in entries}) == 2
    found = compare_control(suite, entries)
    assert found is not None and len(found.differences["uniform"].values) == 1 and found.tests == 0
    assert compare_control(suite, entries[:1]) is None
    build_site([tmp_path / "results"], tmp_path / "site")
    assert "are one method under two random streams" in (tmp_path / "site" / "index.html").read_text()
    rows = list(csv.DictReader(next((tmp_path / "site").glob("*.csv")).read_text().splitlines()))
    assert {row["entry"] for row in rows if row["band"]} == {"fedagent"} < {row["entry"] for row in rows}


EXPECTED = {"first": "fedagent", "relation": "above", "second": "zero-shot", "by": 0.05}
BAD = (
    ({"control": ["fedagent", "zero-shot"]}, "the same changes under two streams"),
    ({"control": ["fedagent", "nobody"]}, "control names two baselines"),
    ({"expected": [EXPECTED]}, "give `spread`"),
    ({"expected": ["Who learns wins."], "spread": 0.1}, "name two entries"),
    ({"expected": [EXPECTED], "spread": 0.001}, "2 seeds decide nothing in four of five experiments"),
    ({"expected": [EXPECTED], "spread": 0.1, "seeds": [0, 1, 2, 3, 4, 5, 6, 7]}, "8 seeds decide 13.4 points"),
    ({"expected": [{**EXPECTED, "relation": "equal to"}], "spread": 0.1}, "equality is within smallest_difference"),
    ({"expected": [{**EXPECTED, "second": "nobody"}], "spread": 0.1}, "'nobody' is no baseline"),
    ({"expected": [{**EXPECTED, "scenarios": ["x"]}], "spread": 0.1}, "'x' is no scenario"),
    ({"track": "agents"}, "has an env and no changes"),
    ({"selection": {"split": "test"}}, "a test split chooses no round"),
    ({"ranking": {"split": "val"}}, "cannot be the one on which the round is chosen"),
    ({"pass_powers": [4]}, "needs as many repeats"),
    ({"seeds": [1, 1]}, "different numbers"),
    ({"name": "smoke-v3"}, "another version"),
)


@pytest.mark.parametrize(("change", "message"), BAD)
def test_definitions_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    with pytest.raises(OptionError, match=message):
        Suite.load({**plain, **change})


# ---- several seeds ----------------------------------------------------------------------------------------------------


def test_several_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    changes = ["federation.rounds=0", "algorithm=zero-shot", "federation.clients_per_round=null"]
    folder = f"output.folder={tmp_path / 'run'}"
    results = train(SMALL_CONFIG, [*changes, folder], seeds=[0, 3])
    assert [result.folder.name for result in results] == ["seed0", "seed3"]
    assert [load_config(result.folder / "config.yaml").seed for result in results] == [0, 3]
    stamp = (results[0].folder / "result.json").stat().st_mtime_ns
    again = train(SMALL_CONFIG, [*changes, folder], seeds=[0, 3])
    assert [one.digest for one in again] == [one.digest for one in results]
    assert (results[0].folder / "result.json").stat().st_mtime_ns == stamp
    found = compare([load_played(tmp_path / "run"), load_played(tmp_path / "run", "again")])
    assert found.runs == 2 and found.differences["again"].values == (0, 0)
    assert main(["train", "demo", "--seeds", "0,x"]) == 2
    with pytest.raises(OptionError, match="different numbers"):
        train(SMALL_CONFIG, [*changes, folder], seeds=[0, 0])


# ---- commands ---------------------------------------------------------------------------------------------------------


def test_commands_tell_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list", "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)]
    assert len(names) == len(set(names)) and "smoke" in names
    assert main(["bench", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert max(map(len, listed)) <= 80 and {
        name for line in listed if line[0] == " " for name in line.split()[:1]
    } == set(names)
    places = [
        next(i for i, line in enumerate(listed) if name in line)
        for name in ("smoke", "methods-tiny-shop-v2", "shop-v1")
    ]
    assert places == sorted(places)
    assert main(["bench", "show", "smoke", "--check"]) == 0
    assert load_suite("smoke").digest in capsys.readouterr().out
    assert main(["bench", "smoke"]) == 2
    assert "fedagentgym bench run smoke" in capsys.readouterr().err


def test_a_plan_of_the_agents_track_tells_tokens_and_price(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The turns are those of the expert, and the price is that of the tokens which the plan names."""
    file = tmp_path / "suite.yaml"
    file.write_text(to_yaml(AGENTS_SUITE))
    name = next(iter(AGENTS_SUITE.scenarios))
    cost = estimate_cost(open_scenario(AGENTS_SUITE, name))
    assert cost.most_reply_tokens == pytest.approx(cost.episodes * cost.turns * 512) and cost.turns <= cost.most_turns
    assert cost.prompt_tokens > cost.episodes * cost.turns * 20 and 0 < cost.reply_tokens < cost.most_reply_tokens
    assert main(["bench", "show", str(file), "--plan", "--prices", "1000", "0"]) == 0
    told = capsys.readouterr().out
    costs = [estimate_cost(open_scenario(AGENTS_SUITE, one)) for one in AGENTS_SUITE.scenarios]
    price = sum(one.prompt_tokens for one in costs) / 1000
    assert "temperature 0.4, replies of at most 512 tokens" in told and f"price: {price:.2f} to {price:.2f}" in told
    assert main(["bench", "show", str(file), "--prices", "1", "1"]) == 2
    houses = estimate_cost(open_scenario(load_suite("agents-tiny-v1"), "houses"))
    assert houses.turns < 10  # an expert for each episode


def test_a_secret_is_drawn_once_and_opens_only_its_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = str(tmp_path / "secret.json")
    assert main(["bench", "twin", "smoke", "--to", secret]) == 0
    assert "sha256:" in capsys.readouterr().out and (tmp_path / "secret.json").stat().st_mode & 0o77 == 0
    assert main(["bench", "twin", "smoke", "--to", secret]) == 2
    assert main(["bench", "run", "agents-tiny-v1", "--agent", "random", "--secret", secret]) == 2
    assert "not the secret" in capsys.readouterr().err


def test_an_agent_is_evaluated_on_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(to_yaml(AGENTS_SUITE))
    line = ["--suite", str(path), "--agent", "expert", "--output", str(tmp_path), "--json"]
    assert main(["-q", "eval", *line]) == 0
    assert json.loads(capsys.readouterr().out)[0]["overall"]["success"]["mean"] == 1.0
    assert main(["eval", *line, "--env", "Guess"]) == 2
    assert main(["bench", "run", str(path), "--set", "algorithm=fedprox", "--name", "x"]) == 2


def test_a_method_of_ones_own_is_given_by_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", "smoke", "--set", "algorithm=fedprox", "--out", str(tmp_path)]) == 2
    assert "--name" in capsys.readouterr().err
    assert main(["bench", "run", "smoke", "--agent", "expert", "--out", str(tmp_path)]) == 2
    assert main(["bench", "run", "smoke", "--baseline", "fedagnt", "--out", str(tmp_path)]) == 2
    assert "did you mean 'fedagent'" in capsys.readouterr().err


def test_a_cell_that_is_played_again_has_equal_bits(honest_method: Path, tmp_path: Path) -> None:
    assert play_again(ResultFolder(honest_method), 0, tmp_path / "again") is None
    changed = forger.copy(honest_method, tmp_path / "changed")
    forger.edit_lines(
        changed, "selection/uniform-seed0.jsonl.xz", lambda lines: lines[0].update(policy="sha256:" + "0" * 64)
    )
    assert play_again(ResultFolder(changed), 0, tmp_path / "again") == "uniform-seed0"
