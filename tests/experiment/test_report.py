from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.experiment.report.diagnostics import CONSTANT, share_constant
from fedagentgym.experiment.report.page import write_report
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.message import Message
from fedagentgym.federation.records import read_metrics_log
from fedagentgym.learning.trajectory import Trajectory, Turn, format_line

HOSTILE = "<script>alert(1)</script>"


def judged(number: int, state: Message) -> dict[str, object]:
    estimate = {"mean": 0.2 + 0.1 * number, "low": 0.1, "high": 0.9}
    overall = dict.fromkeys(("success", "score", "turns"), estimate)
    return {
        "success": estimate["mean"],
        "tasks": 3,
        "episodes": 3,
        "overall": overall,
        "categories": {HOSTILE: overall},
    }


def test_the_page_shows_the_run_and_needs_nothing_else(run_toy: Callable[..., Commit], tmp_path: Path) -> None:
    faults = {"2": {"1": "raise"}}
    run_toy(tmp_path, faults=faults, plan={"evaluate": judged})
    turn = Turn(HOSTILE, "go", ("go",), 0.0, valid=False, format=True)
    episode = Trajectory("t", 0, (turn,), success=True, last=HOSTILE)
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "0003.jsonl").write_text(format_line(episode) + "\n")
    page = write_report(tmp_path).read_text()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "this client is broken" in page
    assert not re.search(r"(src|href)=(?!.data:)|https?://|url\(", page)
    for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(chart)
    assert "Success by round" in page and "took part in rounds" in page


def test_a_run_under_way_has_a_page_too(run_toy: Callable[..., Commit], tmp_path: Path) -> None:
    run_toy(tmp_path, rounds=0)
    assert "An unfinished run" in write_report(tmp_path).read_text()
    with pytest.raises(DataError, match="no run to report on"):
        write_report(tmp_path / "empty")


def add_metrics(records: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, float]]) -> list[Mapping[str, Any]]:
    """The records with further metrics of each training round."""
    before, *trained = records
    return [
        before,
        *({**one, "metrics": {**one["metrics"], **more}} for one, more in zip(trained, found, strict=True)),
    ]


def test_the_page_shows_how_far_play_and_learning_differ(run_toy: Callable[..., Commit], tmp_path: Path) -> None:
    run_toy(tmp_path, rounds=2, plan={"evaluate": judged})
    records = list(read_metrics_log(tmp_path / "metrics.jsonl"))
    assert "on average over" not in write_report(tmp_path, records).read_text()
    found = [{"mismatch": 0.002, "mismatch/most": 0.03}, {"mismatch": 0.004, "mismatch/most": 0.05}]
    page = write_report(tmp_path, add_metrics(records, found)).read_text()
    assert "0.003 on average over 2 rounds; 99.9 % of a round&#39;s below 0.05 at most" in page.replace("'", "&#39;")


def test_the_page_draws_the_share_of_groups_that_earn_the_same(run_toy: Callable[..., Commit], tmp_path: Path) -> None:
    run_toy(tmp_path, rounds=2, plan={"evaluate": judged})
    records = list(read_metrics_log(tmp_path / "metrics.jsonl"))
    assert "Groups that earn the same" not in write_report(tmp_path, records).read_text()
    counts = [{"groups": 8.0, "groups/constant": 2.0}, {"groups": 8.0, "groups/constant": 7.0}]
    told = [{**record, "clients": {"3": counts[0]}} for record in add_metrics(records, counts)]
    first, second = share_constant(told[1:])
    assert (first["metrics"][CONSTANT], second["metrics"][CONSTANT]) == (0.25, 0.875)
    assert first["clients"]["3"][CONSTANT] == 0.25
    page = write_report(tmp_path, told).read_text()
    assert "Groups that earn the same" in page and "client 3, round 2: 0.25" in page
    assert share_constant([{"metrics": {"groups": 0.0}, "clients": {}}]) == [
        {"metrics": {"groups": 0.0}, "clients": {}}
    ]
