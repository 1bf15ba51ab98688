"""Tables of experiments: every row can be run, a table is the same however many processes play it, and nothing is run twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import paper_tables as experiments
from benchmarks.tables import ExperimentTable, Row, run_table, slugify, to_markdown, to_measurements
from fedagentgym.algorithms.base import make_algorithm
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.experiment.config import load_config
from fedagentgym.testing.runs import SMALL_CONFIG

TABLES = {table.name: table for table in vars(experiments).values() if isinstance(table, ExperimentTable)}


@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_every_table_is_a_configuration(name: str) -> None:
    table = TABLES[name]
    assert table.seeds == 3 or name == "table1-tiny-quick"
    configs = [load_config(source, table.changes) for source in table.rows.values()]
    assert len({config.digest for config in configs}) == len(configs), "two rows of a table are the same experiment"
    for bench in (config.spec() for config in configs):
        assert make_algorithm(bench, Runtime(bench)).settings.name == bench.algorithm["name"]
    assert len({slugify(row) for row in table.rows}) == len(table.rows)


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preset of seconds: two methods, one round."""
    plain: dict[str, Any] = merge(SMALL_CONFIG, {"federation": {"rounds": 1}, "algorithm": {"local_steps": 1}})
    plain["variants"] = {
        "alone": {"algorithm": {"name": "local", "client": 1}, "federation": {"clients_per_round": None}}
    }
    path = tmp_path_factory.mktemp("preset") / "small.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.fixture(scope="module")
def table(preset: Path) -> ExperimentTable:
    rows = {"fedagent": str(preset), "one client": f"{preset}:alone"}
    return ExperimentTable("small", rows, pairs=[("fedagent", "one client")], seeds=1, processes=1)


@pytest.fixture(scope="module")
def played(table: ExperimentTable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "small"
    run_table(table, folder)
    return folder


def test_a_table_holds_every_run(played: Path) -> None:
    told = json.loads((played / "table.json").read_text())
    assert [row["name"] for row in told["rows"]] == ["fedagent", "one client"]
    for row in told["rows"]:
        (digest,) = row["config_digests"]
        record = json.loads((played / f"{slugify(row['name'])}-seed0" / "result.json").read_text())
        assert record["config_digest"] == digest
        assert row["values"]["held-out success"] == [record["final"]["overall"]["success"]["mean"]]
    gap = told["rows"][0]["values"]["held-out success"][0] - told["rows"][1]["values"]["held-out success"][0]
    assert told["differences"] == {"fedagent - one client": {"held-out success": [gap]}}
    assert "| fedagent |" in (played / "table.md").read_text()


def test_two_processes_make_the_same_table(table: ExperimentTable, played: Path, tmp_path: Path) -> None:
    beside = ExperimentTable(table.name, table.rows, pairs=table.pairs, seeds=1, processes=2)
    run_table(beside, tmp_path / "small")
    alone, both = (json.loads((folder / "table.json").read_text()) for folder in (played, tmp_path / "small"))
    for told in (alone, both):
        for row in told["rows"]:
            assert row.pop("seconds") > 0
    assert alone == both
    assert (played / "table.md").read_text() == (tmp_path / "small" / "table.md").read_text()


def test_what_is_there_is_not_run_again(table: ExperimentTable, played: Path) -> None:
    before = (played / "fedagent-seed0" / "result.json").stat().st_mtime_ns
    rows = run_table(table, played)
    assert (played / "fedagent-seed0" / "result.json").stat().st_mtime_ns == before
    assert [figure.name for figure in to_measurements(rows)] == [
        "fedagent: held-out success",
        "one client: held-out success",
    ]


def test_a_run_of_another_configuration_is_not_taken_for_this_one(table: ExperimentTable, played: Path) -> None:
    with pytest.raises(OptionError, match="another configuration"):
        run_table(table, played, ["learning.group_size=2"])


def test_a_table_says_what_came_out() -> None:
    row = Row("fedagent", {"success": (0.5, 0.55, 0.6, 0.65, 0.7)}, 1000.0, 2.5)
    (figure,) = to_measurements([row])
    assert figure.value == pytest.approx(0.6)
    assert figure.bar == "± 0.098 (95 % over seeds)"  # 2.776 * 0.0791 / 5 ** 0.5
    assert "| fedagent | 0.600 ± 0.098 | 0.500, 0.550, 0.600, 0.650, 0.700 | 1,000 | 2.5 |" in to_markdown([row])
    few = Row("few", {"success": (0.5, 0.6, 0.7)}, 1.0, 0.0)
    assert "| few | 0.600 | 0.500, 0.600, 0.700 | 1 | 0.0 |" in to_markdown([few]), "three seeds have no interval"
    told = to_markdown([row], {"a - b": {"success": (0.1,) * 5}})
    assert "| a - b | +0.100 ± 0.000 | +0.100, +0.100, +0.100, +0.100, +0.100 |" in told
