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
from itertools import pairwise
from operator import gt
from pathlib import Path

import pytest

from benchmarks.cells_again import play_again
from fedagentgym.agents.players.endpoint import EndpointError
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, UnknownNameError
from fedagentgym.base.statistics import MIN_REPLICATES
from fedagentgym.cli.main import main
from fedagentgym.envs.make import env_class
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.estimate.hours import GPUS
from fedagentgym.experiment.run import train
from fedagentgym.federation.commits import lock_folder
from fedagentgym.leaderboard.compare import compare, load_played
from fedagentgym.leaderboard.costs import estimate_cost, estimate_rental, estimate_suite
from fedagentgym.leaderboard.entries import check_name, list_baselines, make_agent_entry, make_method_entry
from fedagentgym.leaderboard.page.build import build_site
from fedagentgym.leaderboard.page.index import find_paper
from fedagentgym.leaderboard.page.tables import describe_control
from fedagentgym.leaderboard.play import SuiteRun, load_entry, make_run_config, open_entry, play
from fedagentgym.leaderboard.results import Result, SuiteEntries, pack
from fedagentgym.leaderboard.suite import (
    Suite,
    check_budget,
    describe_few_seeds,
    list_suites,
    load_suite,
    make_config,
    make_tuning,
    open_scenario,
    parse_suite,
    to_yaml,
)
from fedagentgym.leaderboard.verify import verify
from fedagentgym.runs.archive import Archive
from fedagentgym.runs.folder import RANKED, RECORD, RunFolder
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.leaderboard import forger
from tests.leaderboard.conftest import play_and_pack
from tests.leaderboard.samples import AGENTS_SUITE


def list_content(path: Path) -> dict[str, object]:
    """What two archives of the same runs share: every file, and of the records all but when and where they were made."""
    archive, found = Archive(path), dict[str, object]()
    for run in archive.digests.runs:
        with archive.unpack(run.name) as folder:
            for file in run.files:
                data = (folder / file.name).read_bytes()
                plain = json.loads(data) if file.name == RECORD else {}
                for name in ("made", "bytes"):  # the reports of clients hold times
                    plain.pop(name, None)
                lasting = file.name not in (RECORD, "metrics.jsonl")  # whose lines hold times
                found[f"{run.name}/{file.name}"] = data if lasting else plain
    return found


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
    wait_for(tmp_path, "runs/smoke/fedagent/*/rounds/0001", process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1.0)  # workers notice within half a second that they are orphans
    run = tmp_path / "runs" / "smoke" / "fedagent"
    with pytest.raises(DataError, match=r"are not finished.*bench resume"):
        load_entry(run).check_finished()
    done = subprocess.run(command("bench", "resume", str(run)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert main(["bench", "pack", str(run), "--out", str(tmp_path / "results")]) == 0
    assert list_content(tmp_path / "results" / "smoke" / "fedagent.zip") == list_content(honest_method)


@pytest.mark.slow
def test_a_run_of_a_suite_that_is_killed_anywhere_ends_alike(honest_method: Path, tmp_path: Path) -> None:
    """At ten points, wherever they come: in a round, between rounds, while it ranks, between two runs."""
    arguments = ["bench", "run", "smoke", "--baseline", "fedagent", "--out", str(tmp_path / "runs"), "--workers", "1"]
    for delay in range(10):
        process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(tmp_path, "runs/smoke/fedagent/.lock", process)
        time.sleep(0.15 * delay)
        process.kill()
        process.wait()
    assert subprocess.run(command(*arguments), check=False).returncode == 0
    assert main(["bench", "pack", str(tmp_path / "runs"), "--out", str(tmp_path / "results")]) == 0
    assert list_content(tmp_path / "results" / "smoke" / "fedagent.zip") == list_content(honest_method)


def test_a_second_run_in_the_same_folder_is_refused(smoke: SuiteRun, capsys: pytest.CaptureFixture[str]) -> None:
    with lock_folder(smoke.folder):
        line = ["bench", "run", "smoke", "--baseline", "fedagent", "--out", str(smoke.folder.parent.parent)]
        assert main(line) == 2
    assert "another process is working on the run in" in capsys.readouterr().err


def test_finished_runs_are_not_played_again(smoke: SuiteRun, capsys: pytest.CaptureFixture[str]) -> None:
    files = [one.run.path / RANKED for one in smoke.runs]
    before = [file.stat().st_mtime_ns for file in files]
    play([smoke])
    assert [file.stat().st_mtime_ns for file in files] == before
    assert main(["bench", "status", str(smoke.folder), "--json"]) == 0
    states = json.loads(capsys.readouterr().out)[0]["runs"]
    assert set(states.values()) == {"finished"} and len(states) == 4


def test_a_run_of_a_suite_is_a_run(smoke: SuiteRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command about runs takes it: it was written by `train`, of the configuration that the suite gives."""
    run = smoke.runs[0].run.path
    config = load_config(run / "config.yaml")
    assert config.digest == make_run_config(smoke.suite, smoke.entry, smoke.runs[0].key).digest
    assert main(["eval", "--check", str(run)]) == 0
    assert main(["episodes", str(run)]) == 0
    assert main(["resume", str(run), "--trust-plugins"]) == 0
    capsys.readouterr()
    again = train(config, [f"output.folder={run.parent.parent / 'again'}"])
    first, second = (RunFolder(place).publish() for place in (run, again.folder))
    assert all(first[name] == second[name] for name in first if name.startswith("evaluation/"))


def test_a_suite_half_done_says_so_and_goes_on(
    smoke: SuiteRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run is trained but not ranked, one is not there at all; the other two stay as they are."""
    shutil.copytree(smoke.folder.parent.parent, tmp_path / "runs")
    entry = load_entry(tmp_path / "runs" / "smoke" / "fedagent")
    files = {one.name: one.run.path / RANKED for one in entry.runs}
    expected = {name: file.read_bytes() for name, file in files.items()}
    first, second = entry.runs[1], entry.runs[3]
    files[first.name].unlink()
    (first.run.path / RECORD).unlink()
    shutil.rmtree(second.run.path)
    kept = [files[one.name].stat().st_mtime_ns for one in (entry.runs[0], entry.runs[2])]
    assert main(["bench", "status", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr().out
    assert "2 of 4 runs finished" in told
    assert re.search(rf"{first.name} +round 2 of 2", told) and re.search(rf"{second.name} +waiting", told)
    assert main(["bench", "resume", str(entry.folder), "--workers", "1"]) == 0
    told = capsys.readouterr().err
    assert f"fedagent {first.name}: finished; 1 run left, about" in told
    assert f"fedagent {second.name}: finished; 0 runs left" in told
    assert {name: file.read_bytes() for name, file in files.items()} == expected
    assert [files[one.name].stat().st_mtime_ns for one in (entry.runs[0], entry.runs[2])] == kept


def test_two_entries_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    play([open_entry(AGENTS_SUITE, make_agent_entry({"name": "random"}, "mine"), tmp_path)], workers=1)
    with pytest.raises(OptionError, match="another entry of this name"):
        play([open_entry(AGENTS_SUITE, make_agent_entry({"name": "expert"}, "mine"), tmp_path)], workers=1)


def test_an_entry_without_a_finished_run_is_replaced(tmp_path: Path) -> None:
    """A mistyped address or model leaves the entry's name free."""
    endpoint = {"name": "endpoint", "model": "m", "options": {"url": "http://127.0.0.1:9/v1"}}
    with pytest.raises(EndpointError, match="cannot be reached"):
        play([open_entry(AGENTS_SUITE, make_agent_entry(endpoint, "mine"), tmp_path)], workers=1)
    with pytest.raises(UnknownNameError, match="unknown agent"):
        play([open_entry(AGENTS_SUITE, make_agent_entry({"name": "rondam"}, "other"), tmp_path)], workers=1)
    assert not (tmp_path / AGENTS_SUITE.name / "other").exists()
    run = open_entry(AGENTS_SUITE, make_agent_entry({"name": "random"}, "mine"), tmp_path)
    play([run], workers=1)
    assert load_entry(run.folder).entry == run.entry and not run.missing


def test_tasks_that_were_played_are_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped while episodes were being written ends with the same ones as a run played in one go."""
    monkeypatch.setattr("fedagentgym.experiment.evaluation_run.TASKS_AT_A_TIME", {"program": 3})
    entry = make_agent_entry({"name": "random"})
    run = open_entry(AGENTS_SUITE, entry, tmp_path / "a")
    play([run], workers=1)
    one = run.runs[0]
    file = one.run.path / RANKED
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    kept = "".join(lines[:6])
    (one.run.path / RECORD).unlink()
    (one.run.path / "progress.json").write_text(json.dumps({"tasks": 3, "bytes": len(kept.encode())}))
    file.write_text(kept + lines[6] + lines[7][:20])
    run = open_entry(AGENTS_SUITE, entry, tmp_path / "a")
    assert run.describe_state(run.runs[0]) == "3 of 8 tasks"
    play([run], workers=1)
    assert file.read_text() == whole and not (one.run.path / "progress.json").exists()
    monkeypatch.setattr("fedagentgym.experiment.evaluation_run.TASKS_AT_A_TIME", {"program": 1000})
    other = open_entry(AGENTS_SUITE, entry, tmp_path / "b")
    play([other], workers=1)
    for folder, name in ((run.folder, "a.zip"), (other.folder, "b.zip")):
        pack(Result(folder), tmp_path / name)
    first, second = (list_content(tmp_path / name) for name in ("a.zip", "b.zip"))
    assert {**first, f"{one.name}/{RECORD}": 0} == {**second, f"{one.name}/{RECORD}": 0}


# ---- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.by_day(2)
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
        assert suite.power < (0.15 if len(suite.seeds) >= 8 else 0.36)
        first, second = (make_run_config(suite, one, (scenario, 3)) for one in list_baselines(suite, suite.control))
        assert {key for key, value in first.plain().items() if second.plain()[key] != value} == {"seed"}


@pytest.mark.parametrize("name", [name for name in list_suites() if name.startswith("paper-")])
def test_a_papers_suite_is_planned_without_its_data(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    suite = load_suite(name)
    assert main(["bench", "plan", name]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert set(suite.baselines) <= set(rows) and len(rows) <= 10 + len(suite.baselines) * len(suite.scenarios)
    assert main(["bench", "plan", name, "--details"]) == 0
    told = capsys.readouterr().out
    for entry in suite.baselines:
        for scenario in suite.scenarios:
            assert f"{entry}, {scenario}, each of 3 seeds" in told
    assert told.count("tokens generated to learn from") == len(suite.baselines) * len(suite.scenarios)


def test_a_suite_whose_tasks_are_others_does_not_start() -> None:
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    plain["scenarios"]["uniform"]["pool"] = "sha256:" + "0" * 64
    with pytest.raises(DataError, match="are about other tasks than these"):
        open_scenario(Suite.load(plain), "uniform")


def test_a_test_split_by_another_name_chooses_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    monkeypatch.setattr(env_class("fedagentgym/Guess-v0"), "split_aliases", {"exam": "test"})
    chosen = {**plain, "selection": {**plain["selection"], "split": "exam"}}
    with pytest.raises(OptionError, match="the split that ranks cannot be the one on which the round is chosen"):
        open_scenario(Suite.load(chosen), "uniform")
    known = ("about", "axis", "level", "methods_differ", "because")  # without the digests of the tasks
    scenarios = {"uniform": {name: value for name, value in plain["scenarios"]["uniform"].items() if name in known}}
    chosen |= {"ranking": {**plain["ranking"], "split": "val"}, "scenarios": scenarios}
    opened = open_scenario(Suite.load(chosen), "uniform")
    with pytest.raises(OptionError, match=r"selection\.split is exam: a test split chooses no round"):
        opened.check_held_out()


@pytest.mark.parametrize("change", ["env.options.seed=3", "evaluation.tasks=2", "seed=5", "partition.clients=2"])
def test_a_method_changes_nothing_of_the_suite(change: str) -> None:
    with pytest.raises(OptionError, match="belongs to the suite"):
        make_config(load_suite("smoke"), "uniform", [change])


def test_a_method_sets_the_adapter_where_the_suite_says_so() -> None:
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    own, changes = Suite.load({**plain, "row_adapters": True}), ["agent.adapter={rank: 2}"]
    assert make_config(own, "uniform", changes).agent.adapter is not None
    with pytest.raises(OptionError, match=r"agent\.adapter only, 'agent' belongs to the suite"):
        make_config(own, "uniform", [*changes, "agent.decoding={max_new_tokens: 3}"])
    with pytest.raises(OptionError, match="'agent' belongs to the suite"):
        make_config(load_suite("smoke"), "uniform", changes)
    assert Suite.load({**plain, "row_adapters": False}).digest == load_suite("smoke").digest != own.digest


def test_a_method_stays_within_the_budget(tmp_path: Path) -> None:
    entry = make_method_entry(["federation.rounds=9"], "long")
    with pytest.raises(OptionError, match="at most 2 rounds"):
        play([open_entry(load_suite("smoke"), entry, tmp_path)], workers=1)
    suite = load_suite("methods-tiny-skills-v2")
    (changes,) = (one.changes for name, one in suite.baselines.items() if name == "fedgrpo")
    practised = [change.replace("expert_steps: 23", "expert_steps: 24") for change in changes]
    with pytest.raises(OptionError, match="at most 10,240 episodes with all preparation, this method plays 10,304"):
        make_run_config(suite, make_method_entry(practised, "practised"), ("uniform", 0))


def test_a_round_whose_evaluation_was_killed_is_counted_once(smoke: SuiteRun, tmp_path: Path) -> None:
    """A method may play all episodes of the budget, and a resumed run reports its last round again."""
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    spent = smoke.runs[0].run.record.spent.episodes
    one_run = {"seeds": [0], "scenarios": {"uniform": plain["scenarios"]["uniform"]}}
    suite = Suite.load({**plain, **one_run, "budget": {"rounds": 2, "episodes": spent}})
    (entry,) = list_baselines(suite, ["fedagent"])
    one = open_entry(suite, entry, tmp_path)
    play([one], workers=1)
    folder = one.runs[0].run.path
    before = json.loads((folder / RECORD).read_text())
    (folder / RECORD).unlink()
    (folder / "rounds" / "0002" / "evaluation.json").unlink()
    play([open_entry(suite, entry, tmp_path)], workers=1)
    assert {**json.loads((folder / RECORD).read_text()), "made": before["made"]} == before


@pytest.mark.parametrize("name", ["smoke", "smoke-v1"])
def test_the_top_of_a_suite_is_asked_for_by_its_name(
    name: str, smoke: SuiteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the version, as in file names, or without."""
    assert main(["leaderboard", "top", str(smoke.folder), "--suite", name]) == 0
    assert "FedAgent" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes", [["federation.rounds=9"], ["learning.learning_rate=nan"], ["seed=4"], ["algorithm=unknown"]], ids=str
)
def test_a_method_that_is_refused_changes_no_file(changes: list[str], smoke: SuiteRun, tmp_path: Path) -> None:
    """Not even runs that another method of this name began."""
    place = tmp_path / "smoke" / "mine"
    shutil.copytree(smoke.folder, place)
    for file in place.glob(f"*/{RECORD}"):
        file.unlink()
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    for root in (tmp_path, tmp_path / "new"):
        with pytest.raises(FedAgentGymError):
            play([open_entry(smoke.suite, make_method_entry(changes, "mine"), root)], workers=1)
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before and not (tmp_path / "new").exists()


def test_a_file_is_no_store(smoke: SuiteRun, tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    with pytest.raises(OptionError, match="--store must be a folder"):
        play([smoke], workers=1, store=tmp_path / "store")


def test_the_name_of_a_baseline_is_for_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planned comparisons name their entries."""
    line = ["bench", "run", "smoke", "--name", "fedagent", "--out", str(tmp_path / "runs")]
    assert main([*line, "--set", "algorithm=fedprox"]) == 2
    assert "'fedagent' is the name of a baseline of smoke: choose another name" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    suite = load_suite("smoke")
    check_name(suite, make_method_entry(suite.baselines["fedagent"].changes, "fedagent"))
    check_name(suite, make_method_entry(["algorithm=fedprox"], "mine"))


def test_a_control_is_one_method_under_two_streams(tmp_path: Path) -> None:
    """And its last round is ranked, whichever did best on val."""
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    suite = Suite.load(
        {**plain, "seeds": [0], "ranked_round": "last", "scenarios": {"uniform": plain["scenarios"]["uniform"]}}
    )
    assert suite.control is not None and suite.digest != load_suite("smoke").digest
    runs = [open_entry(suite, entry, tmp_path) for entry in list_baselines(suite, suite.control)]
    play(runs, workers=1)
    entries = []
    for run in runs:
        archive = tmp_path / "results" / f"{run.entry.name}.zip"
        pack(Result(run.folder), archive)
        entries.append(Result(archive))
        (record,) = entries[-1].records.values()
        assert record.ranked is not None and record.ranked.round == 2
        assert {claim.name: claim.status for claim in verify(archive, suite=suite).claims}["selection"] == "proven"
    records = [next(iter(entry.records.values())) for entry in entries]
    assert [record.seed for record in records] == [0, 1_000_000]
    assert len({record.ranked.policy for record in records if record.ranked}) == 2
    told = " ".join(describe_control(SuiteEntries(suite, entries), []))
    assert re.search(r"are one method under two random streams: uniform \S+ \(\S+\)\.$", told), told
    assert describe_control(SuiteEntries(suite, entries[:1]), []) == []
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
    ({"expected": [EXPECTED], "spread": 0.1, "seeds": [0, 1, 2, 3, 4, 5, 6, 7]}, "8 seeds decide 14.5 points"),
    ({"expected": [{**EXPECTED, "relation": "equal to"}], "spread": 0.1}, "equality is within smallest_difference"),
    ({"expected": [{**EXPECTED, "second": "nobody"}], "spread": 0.1}, "'nobody' is no baseline"),
    ({"expected": [{**EXPECTED, "scenarios": ["x"]}], "spread": 0.1}, "'x' is no scenario"),
    ({"track": "agents"}, "has an env and no changes"),
    ({"selection": {"split": "test"}}, "a test split chooses no round"),
    ({"ranking": {"split": "val"}}, "cannot be the one on which the round is chosen"),
    ({"pass_powers": [4]}, "needs 4 repeats"),
    ({"seeds": [1, 1]}, "different numbers"),
    ({"name": "smoke-v3"}, "another version"),
    ({"scenarios": {"seen": {"changes": ["ranking.split=val"]}}}, "cannot be the one on which the round is chosen"),
    ({"scenarios": {"seen": {"changes": ["ranking.splits=test"]}}}, "did you mean 'split'|splits"),
    ({"scenarios": {"seen": {"changes": ["ranking.round=last"]}}}, "round"),
    ({"scenarios": {"seen": {"changes": ["ranking=null"]}}}, "ranking"),
    ({"scenarios": {"a": {}, "b": {"changes": ["ranking.repeats=2"]}}, "pass_powers": [2]}, "needs 2 repeats"),
)


@pytest.mark.parametrize(("change", "message"), BAD)
def test_definitions_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    with pytest.raises(OptionError, match=message):
        Suite.load({**plain, **change})


def test_a_scenario_may_rank_on_other_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = load_suite("smoke").model_dump(mode="json", exclude_unset=True)
    scenarios = {"uniform": {}, "seen": {"changes": ["ranking.split=val", "ranking={tasks: 5, repeats: 2}"]}}
    own = {"scenarios": scenarios, "ranked_round": "last", "seeds": [0], "name": "seen"}
    suite = Suite.load({**plain, **own, "tuning": {"worlds": [9], "learning_rate": [0.001]}})
    result = play_and_pack(suite, make_method_entry([], "mine"), tmp_path, tmp_path / "mine.zip")
    for scenario, (split, tasks, repeats) in {"uniform": ("test", 12, 1), "seen": ("val", 5, 2)}.items():
        ranked = result.records[scenario, 0].ranked
        assert ranked is not None and result.records[scenario, 0].tasks.split == split
        assert [len(group) for group in result.read_groups((scenario, 0))] == [repeats] * tasks
        trials = make_tuning(suite).get_ranking(scenario)
        assert (trials.split, trials.tasks, trials.repeats) == ("val", 6, 1)
    assert verify(tmp_path / "mine.zip", suite=suite).replayed
    (tmp_path / "seen.yaml").write_text(to_yaml(suite))
    assert main(["bench", "show", str(tmp_path / "seen.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "# uniform: 6 tasks of val draw the curve, 12 tasks of test rank" in shown
    assert "# seen: 5 tasks of val draw the curve and rank" in shown


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", list_suites())
def test_a_suite_with_too_few_seeds_says_what_it_cannot_show(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    suite = load_suite(name)
    few = suite.track == "methods" and len(suite.seeds) < MIN_REPLICATES
    assert main(["bench", "show", name]) == 0
    assert ("no interval, test or rank" in capsys.readouterr().out) == few
    if few:
        plain = suite.model_dump(mode="json", exclude_unset=True)
        assert describe_few_seeds(Suite.load({**plain, "seeds": range(MIN_REPLICATES)})) is None


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


def test_commands_list_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list", "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)]
    assert len(names) == len(set(names)) and "smoke" in names
    assert main(["bench", "list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert max(map(len, listed)) <= 80 and {
        name for line in listed if line[0] == " " != line[2] for name in line.split()[:1]
    } == set(names)
    places = [
        next(i for i, line in enumerate(listed) if name in line)
        for name in ("smoke", "methods-tiny-shop-v3", "paper-fedagent-webshop-v1", "methods-tiny-shop-v2")
    ]
    assert places == sorted(places)
    assert main(["bench", "show", "smoke", "--check"]) == 0
    assert load_suite("smoke").digest in capsys.readouterr().out
    assert main(["bench", "smoke"]) == 2
    assert "fedagentgym bench run smoke" in capsys.readouterr().err


def test_a_plan_states_the_minutes_of_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    suite = load_suite("methods-tiny-skills-v2")
    assert suite.minutes == 44 and main(["bench", "plan", suite.name]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "an entry" in line]
    each = 44 / len(list_baselines(suite))
    assert said == f"about {each:.1f} min an entry on two cores, as its file states: 44 min for all baselines"


def test_a_plan_of_the_agents_track_states_tokens_and_price(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The turns are those of the expert, and the price is that of the tokens which the plan names."""
    file = tmp_path / "suite.yaml"
    file.write_text(to_yaml(AGENTS_SUITE))
    name = next(iter(AGENTS_SUITE.scenarios))
    cost = estimate_cost(open_scenario(AGENTS_SUITE, name))
    assert cost.most_reply_tokens == pytest.approx(cost.episodes * cost.turns * 512) and cost.turns <= cost.most_turns
    assert cost.prompt_tokens > cost.episodes * cost.turns * 20 and 0 < cost.reply_tokens < cost.most_reply_tokens
    assert main(["bench", "plan", str(file), "--prices", "1000", "0"]) == 0
    told = capsys.readouterr().out
    costs = [estimate_cost(open_scenario(AGENTS_SUITE, one)) for one in AGENTS_SUITE.scenarios]
    price = sum(one.prompt_tokens for one in costs) / 1000
    assert "temperature 0.4, replies of at most 512 tokens" in told and f"price: {price:.2f} to {price:.2f}" in told
    assert main(["bench", "plan", "smoke", "--prices", "1", "1"]) == 2
    assert main(["bench", "plan", "smoke", "--agent", "smollm2"]) == 2
    for wrong in (["--gpu", "l4"], ["--price", "2"], ["--agent", "smollm2", "--prices", "1", "1"], ["--details"]):
        assert main(["bench", "plan", str(file), *wrong]) == 2
    houses = estimate_cost(open_scenario(load_suite("agents-tiny-v1"), "houses"))
    assert houses.turns < 10  # an expert for each episode


def test_a_model_on_a_card_costs_its_minutes() -> None:
    """Of a faster card fewer, of a larger model more; the longest replies take longest, and the price is that of the hour."""
    cost = estimate_suite(AGENTS_SUITE)
    for smaller, larger in pairwise(("smollm2", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-8B")):
        one, other = (estimate_rental(cost, model, GPUS["l4"], 3.0) for model in (smaller, larger))
        assert all(map(gt, other.minutes, one.minutes)) and one.minutes[0] < one.minutes[1]
        assert one.price == pytest.approx([minutes / 20 for minutes in one.minutes])
        assert all(map(gt, one.minutes, estimate_rental(cost, smaller, GPUS["h100"]).minutes))


def test_a_secret_is_drawn_once_and_opens_only_its_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = str(tmp_path / "secret.json")
    assert main(["bench", "twin", "smoke", "--out", secret]) == 0
    assert "sha256:" in capsys.readouterr().out and (tmp_path / "secret.json").stat().st_mode & 0o77 == 0
    assert main(["bench", "twin", "smoke", "--out", secret]) == 2
    assert main(["bench", "run", "agents-tiny-v1", "--agent", "random", "--secret", secret]) == 2
    assert "not the secret" in capsys.readouterr().err


def test_an_agent_is_evaluated_on_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(to_yaml(AGENTS_SUITE))
    line = ["--suite", str(path), "--agent", "expert", "--out", str(tmp_path), "--json"]
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


def test_a_run_that_is_played_again_has_equal_bits(honest_method: Path, tmp_path: Path) -> None:
    assert play_again(Result(honest_method), 0, tmp_path / "again") is None
    changed = forger.copy(honest_method, tmp_path / "changed")
    forger.edit_lines(
        changed / "uniform-seed0", "evaluation/0000.jsonl", lambda lines: lines[0].update(policy="sha256:" + "0" * 64)
    )
    archive = forger.pack(changed, tmp_path / "changed.zip")
    assert play_again(Result(archive), 0, tmp_path / "again") == "uniform-seed0"


def test_a_result_is_read_episode_by_episode_as_folder_and_as_archive(
    smoke: SuiteRun, honest_method: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every ranked episode of every run is there, with the instructions of its environment."""
    written = []
    for place in (smoke.folder, honest_method):
        assert main(["episodes", str(place), "--list"]) == 0
        assert main(["-q", "chats", str(place), "--out", str(tmp_path / "chats.jsonl")]) == 0
        written.append((capsys.readouterr().out, (tmp_path / "chats.jsonl").read_text()))
    assert written[0] == written[1]
    chats = [json.loads(line) for line in written[0][1].splitlines()]
    result = Result(honest_method)
    assert len(chats) == sum(len(group) for key in result.keys for group in result.read_groups(key)) > 0
    assert all(one["messages"][0]["role"] == "system" for one in chats)
    assert f"{len(chats)} in all" in written[0][0]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["episodes", str(empty)]) == 2
