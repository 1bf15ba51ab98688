"""The result of `train`, and the tables of splits: short to print, and numbers to compute on with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import fedagentgym
from fedagentgym.errors import DataError
from fedagentgym.federation.records import COLUMNS
from fedagentgym.learning.trajectory import Trajectory, format_line


def make_result(folder: Path, *, evaluated: bool = True) -> fedagentgym.RunResult:
    found = [{"mean": mean, "low": mean - 0.1, "high": mean + 0.1} for mean in (0.5, 0.7)]
    (folder / "evaluation").mkdir()
    lines = []
    for number, success in enumerate(found):
        counts = {**dict.fromkeys(COLUMNS, 0), "weights": 5 * number, "report": 3}
        row = {"round": number, "bytes_total": {"down": counts, "up": counts}, "seconds_total": 1.0 * number}
        shown = {"evaluation": {"overall": {"success": success, "score": success}}} if evaluated else {}
        lines.append(json.dumps({**row, **shown}) + "\n")
        episode = format_line(Trajectory(f"guess/val/{number:05d}", 0, ()))
        (folder / "evaluation" / f"{number:04d}.jsonl").write_text(episode + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    final = {"overall": {"success": found[1]}} if evaluated else None
    record = {
        "name": "trial",
        "algorithm": "fedagent",
        "rounds": 1,
        "final": final,
        "agent": {"note": {"long": "x" * 9999}},
    }
    return fedagentgym.RunResult(folder, record)


def test_a_result_has_its_success_its_curve_and_its_episodes(tmp_path: Path) -> None:
    result = make_result(tmp_path)
    assert result.success == 0.7 and result.interval == (pytest.approx(0.6), pytest.approx(0.8))
    assert [one.task for one in result.episodes()] == ["guess/val/00001"]
    assert [one.task for one in result.episodes(0)] == ["guess/val/00000"]
    with pytest.raises(DataError, match=r"no evaluated episodes of round 7: evaluated are \[0, 1\]"):
        result.episodes(7)
    assert repr(result) == f"RunResult(trial: fedagent, rounds: 1, success 0.700 [0.600, 0.800]; {tmp_path})"


def test_a_result_without_an_evaluation(tmp_path: Path) -> None:
    result = make_result(tmp_path, evaluated=False)
    assert result.success is None and result.interval is None and "not evaluated" in repr(result)
    for wrong in (result.plot, result.episodes):
        with pytest.raises(DataError, match="evaluated"):
            wrong()


def test_a_curve_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = make_result(tmp_path)
    pytest.importorskip("pandas")
    assert result.curve["success"].tolist() == [0.5, 0.7] and result.curve["bytes"].tolist() == [0, 10]
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["round"] for row in result.curve] == [0, 1]


def test_a_curve_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    make_result(tmp_path).plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000


def test_statistics_and_pools_are_short_to_print_and_a_table() -> None:
    split = fedagentgym.federate("Guess", clients=3, tasks_per_client=4)
    assert repr(split.statistics()).startswith(
        "Statistics(3 clients of 600 tasks by uniform: 4 each, distance to the pool 0."
    )
    assert repr(split[1].pool).startswith("TaskPool(4 tasks of fedagentgym/Guess-v0, train: ")
    assert len(repr(split.statistics())) < 200 and len(split.statistics().table) == 3
