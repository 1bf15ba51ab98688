"""One row a run, as a parquet file: what a hub's viewer, pandas and duckdb show of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedagentgym.cli.main import main
from fedagentgym.leaderboard.results import Result
from tests.committed import RESULTS


def test_every_run_of_committed_results_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    places = [RESULTS / "methods-small-skills-v1" / "pubswap.zip", RESULTS / "agents-tiny-v1"]
    file = tmp_path / "runs.parquet"
    assert main(["bench", "export", *map(str, places), "--out", str(file)]) == 0
    rows = parquet.read_table(file).to_pylist()
    result = Result(places[0])
    mine = {(row["scenario"], row["seed"]): row for row in rows if row["suite"] == result.suite.name}
    assert set(mine) == set(result.keys) and len(rows) > len(mine)
    for key, record in result.records.items():
        row = mine[key]
        assert record.ranked is not None and row["success"] == record.ranked.overall["success"]["mean"]
        assert (row["config"], row["policy"], row["result"]) == (
            record.config_digest,
            record.ranked.policy,
            result.digest,
        )
        assert row["bytes"] == record.spent.bytes and row["entry"] == "pubswap"
    assert {row["suite"] for row in rows} == {"methods-small-skills-v1", "agents-tiny-v1"}


def test_a_place_without_a_result_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow.parquet")
    assert main(["bench", "export", str(tmp_path), "--out", str(tmp_path / "runs.parquet")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not list(tmp_path.iterdir())
