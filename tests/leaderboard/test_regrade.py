"""A result graded again from its replies: equal under the same rules, and exactly what another rule grades otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.cli.main import main
from fedagentgym.envs.make import open_env
from fedagentgym.envs.reasoning import math as math_env
from fedagentgym.envs.verifiers import Verdict, wrong
from fedagentgym.leaderboard.regrade import regrade_result
from fedagentgym.leaderboard.results import Result
from fedagentgym.leaderboard.verify import verify
from fedagentgym.runs.archive import Archive, write_archive
from fedagentgym.runs.folder import RANKED
from tests.committed import RESULTS, find_suite

MATH = "methods-tiny-math-v2"


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first run of a committed mathematics result."""
    whole, to = Archive(find_suite(MATH) / "centralized.zip"), tmp_path_factory.mktemp("regrade") / "one.zip"
    documents = {one.name: whole.read(one.name) for one in whole.digests.documents}
    with whole.unpack(whole.runs[0]) as folder:
        files = {file.name: (folder / file.name).read_bytes() for file in whole.digests.runs[0].files}
    write_archive(to, documents, [(whole.runs[0], files)])
    return to


def test_under_the_same_rules_nothing_changes(one_run: Path, tmp_path: Path) -> None:
    found = regrade_result(one_run, tmp_path / "new.zip")
    assert found.changes == [] and found.episodes > 100 and found.means[0] == found.means[1]
    before, after = Result(one_run), Result(tmp_path / "new.zip")
    assert after.entry.regraded is not None and after.entry.regraded.of == before.digest
    (key,) = before.keys
    with before.open_run(key, RANKED) as one, after.open_run(key, RANKED) as other:
        assert (one.path / RANKED).read_bytes() == (other.path / RANKED).read_bytes()
    assert before.records[key].ranked == after.records[key].ranked


def test_exactly_what_a_broken_rule_grades_otherwise_is_listed(
    one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule is broken on purpose: answers that end in 1 are wrong."""
    result = Result(one_run)
    (key,) = result.keys
    answers = {task.id: task.payload.answers[0] for task in open_env("Math", size="tiny", split="test").pool}
    expected = {
        (trajectory.task, trajectory.sample)
        for group in result.read_groups(key)
        for trajectory in group
        if trajectory.success and answers[trajectory.task].endswith("1")
    }
    assert expected
    real = math_env.grade_math

    def broken(reply: str, answers: Any, verifier: str) -> Verdict:
        verdict = real(reply, answers, verifier)
        return wrong("broken", verdict.parsed) if verdict.correct and answers[0].endswith("1") else verdict

    monkeypatch.setattr(math_env, "grade_math", broken)
    to = tmp_path / "new.zip"
    assert main(["bench", "regrade", str(one_run), "--out", str(to), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ranked = [one for one in told["changes"] if one["file"] == RANKED]
    assert {(one["task"], one["sample"]) for one in ranked} == expected
    assert all((one["before"], one["after"], one["success"]) == (1.0, 0.0, [True, False]) for one in told["changes"])
    assert told["before"] - told["after"] == pytest.approx(len(expected) / Result(to).records[key].ranked.episodes)  # type: ignore[union-attr]
    assert regrade_result(to, tmp_path / "again.zip").changes == []
    monkeypatch.setattr(math_env, "grade_math", real)
    back = regrade_result(to, tmp_path / "back.zip")
    assert {(one.task, one.sample) for one in back.changes if one.file == RANKED} == expected
    assert Result(tmp_path / "back.zip").records[key].ranked == result.records[key].ranked


def test_what_cannot_be_graded_again_is_refused(one_run: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a result is an archive"):
        regrade_result(one_run, tmp_path / "new")
    (tmp_path / "there.zip").write_bytes(b"kept")
    with pytest.raises(DataError, match="exists already"):
        regrade_result(one_run, tmp_path / "there.zip")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.zip"]


def test_a_regraded_result_verifies(tmp_path: Path) -> None:
    """A whole result of the agents track, graded again, holds every claim that it held before."""
    committed = RESULTS / "agents-tiny-v1" / "random.zip"
    assert regrade_result(committed, tmp_path / "new.zip").changes == []
    before, after = verify(committed), verify(tmp_path / "new.zip")
    assert [(one.name, one.status) for one in before.claims] == [(one.name, one.status) for one in after.claims]


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((RESULTS / MATH).glob("*.zip")), ids=lambda file: file.stem)
def test_no_committed_mathematics_result_changes(file: Path, tmp_path: Path) -> None:
    found = regrade_result(file, tmp_path / "new.zip")
    assert found.changes == [] and found.episodes > 1000
