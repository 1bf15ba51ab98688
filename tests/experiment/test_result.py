"""The result of `train`, and the tables of splits: short to print, and numbers to compute on with."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import fedagentgym
from fedagentgym.agents.agent import TokenAgent
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.errors import DataError, MissingExtraError, OptionError
from fedagentgym.federation.commits import lock_folder
from fedagentgym.federation.records import COLUMNS
from fedagentgym.learning.trajectory import Trajectory, format_line
from fedagentgym.testing.runs import SMALL_CONFIG


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


CONFIG: dict[str, Any] = merge(
    SMALL_CONFIG,
    {
        "algorithm": {"name": "fedagent", "local_steps": 1},
        "partition": {"clients": 2, "tasks_per_client": 4, "roles": {}},
        "learning": {"tasks_per_step": 1, "group_size": 2},
    },
)


class Stopped(Exception):
    pass


class StopAfterOne:
    """Ends a run after its first round, as a crash would."""

    def begin(self, rounds: int) -> None: ...

    def round_done(self, record: Mapping[str, Any]) -> None:
        if record["round"] == 1:
            raise Stopped


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(Stopped):
        fedagentgym.train(CONFIG, [f"output.folder={folder}"], observers=[StopAfterOne()], force=True)
    return folder


@pytest.fixture(scope="module")
def finished(stopped: Path) -> Path:
    folder = shutil.copytree(stopped, stopped.with_name("finished"))
    assert main(["-q", "resume", str(folder)]) == 0
    return folder


def test_a_run_that_is_resumed_in_python_ends_like_the_one_of_the_command(
    stopped: Path, finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    with pytest.raises(DataError, match=r"is not finished: .*goes on with fedagentgym\.resume"):
        fedagentgym.RunResult.load(folder)
    resumed = fedagentgym.resume(folder, ["federation.workers=0"])
    loaded = fedagentgym.RunResult.load(finished)
    assert resumed.digest == loaded.digest and resumed.folder == folder and resumed.success == loaded.success
    assert fedagentgym.RunResult.load(folder) == resumed
    with pytest.raises(OptionError, match="cannot be changed when a run is resumed"):
        fedagentgym.resume(folder, ["seed=1"])


def list_lines(agent: TokenAgent) -> list[str]:
    """The episodes that an agent plays, with their tokens and log-probs."""
    found = fedagentgym.evaluate(agent, "Guess", tasks=6, repeats=2, seed=4)
    return [format_line(one) for group in found.groups for one in group]


def test_the_agent_of_a_run_is_the_exported_one(finished: Path, tmp_path: Path) -> None:
    result = fedagentgym.RunResult.load(finished)
    assert result.export(tmp_path / "model") == 2 and result.export(tmp_path / "first", 1) == 1
    for own, folder in ((result.load_agent(), "model"), (result.load_agent(1), "first")):
        theirs = fedagentgym.load_agent(tmp_path / folder)
        assert list_lines(own) == list_lines(theirs)
    with pytest.raises(DataError, match=r"round 7 of .* is not kept"):
        result.load_agent(7)
    with pytest.raises(OptionError, match="best and number"):
        result.export(tmp_path / "none", 1, best=True)
    assert not (tmp_path / "none").exists()


def test_what_is_no_run_is_one_sentence(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening: tuple[Callable[[Path], object], ...] = (fedagentgym.RunResult.load, fedagentgym.resume)
    for open_it in opening:
        with pytest.raises(DataError, match=r"there is no run in .*: config\.yaml is missing"):
            open_it(tmp_path)
    with pytest.raises(DataError, match=r"is a run, not an exported agent"):
        fedagentgym.load_agent(finished)
    with lock_folder(finished), pytest.raises(DataError, match="another process is working on the run"):
        fedagentgym.resume(finished)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = fedagentgym.RunResult.load(finished)
    for act in (result.load_agent, lambda: result.export(tmp_path / "model"), lambda: fedagentgym.resume(finished)):
        with pytest.raises(MissingExtraError, match=r"torch is not installed: it comes with the extra \[train\]"):
            act()
