from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.federation.algorithm import QuorumError, ServerState, draw_participants
from fedagentgym.federation.commits import Commit, CommitStore
from fedagentgym.federation.records import best_rounds, read_metrics_log

Run = Callable[..., Commit]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_one_line_and_one_commit_per_round(run_toy: Run, tmp_path: Path) -> None:
    commit = run_toy(tmp_path, rounds=5, per_round=2, clients=6, plan={"keep_rounds": 2})
    records = lines(tmp_path)
    assert [record["round"] for record in records] == list(range(6))
    assert all(len(record["participants"]) == 2 for record in records[1:])
    assert records[-1]["digest"] == commit.state.digest
    assert records[-1]["bytes"]["down"]["weights"] == 2 * 32
    assert records[-1]["bytes_total"]["up"]["weights"] == 5 * 2 * 32
    assert CommitStore(tmp_path / "rounds").list_rounds() == [4, 5]
    assert set(commit.heads) == {client for record in records for client in record["participants"]}


def test_no_more_rounds_are_kept_than_are_asked_for(run_toy: Run, tmp_path: Path) -> None:
    run_toy(tmp_path, rounds=5, plan={"keep_rounds": 9})
    store = CommitStore(tmp_path / "rounds")
    for newest, best, left in ((9, (), range(6)), (3, (1,), (1, 3, 4, 5)), (1, (1,), (1, 5)), (0, (1,), (1,))):
        store.keep_only(newest, best)
        assert store.list_rounds() == list(left)
    with pytest.raises(OptionError, match="keep_rounds is at least 1"):
        run_toy(tmp_path / "none", rounds=1, plan={"keep_rounds": 0})
    assert not (tmp_path / "none" / "rounds").exists()


def test_going_on_gives_the_same_as_never_having_stopped(run_toy: Run, tmp_path: Path) -> None:
    whole = run_toy(tmp_path / "whole", rounds=5)
    for rounds in (0, 2, 3, 5):
        stepwise = run_toy(tmp_path / "steps", rounds=rounds)
    assert stepwise.state.digest == whole.state.digest
    assert stepwise.heads == whole.heads
    assert [r["digest"] for r in lines(tmp_path / "steps")] == [r["digest"] for r in lines(tmp_path / "whole")]
    assert run_toy(tmp_path / "whole", rounds=5).state.digest == whole.state.digest


def test_what_is_missing_after_a_commit_is_written_again(run_toy: Run, tmp_path: Path) -> None:
    run_toy(tmp_path, rounds=3, plan={"evaluate": evaluate})
    journal = tmp_path / "metrics.jsonl"
    text = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(text[:-1]) + text[-1][:40])
    run_toy(tmp_path, rounds=3, plan={"evaluate": evaluate})
    assert [record["round"] for record in lines(tmp_path)] == [0, 1, 2, 3]
    assert lines(tmp_path)[-1]["evaluation"]["success"] == 0.25


def evaluate(number: int, state: ServerState) -> dict[str, float]:
    return {"success": 0.9 if number == 1 else 0.25, "norm": float(state.parameters["w"].sum())}


def test_the_best_commit_is_kept_beside_the_newest(run_toy: Run, tmp_path: Path) -> None:
    run_toy(tmp_path, rounds=6, plan={"evaluate": evaluate, "keep_rounds": 2})
    assert CommitStore(tmp_path / "rounds").list_rounds() == [1, 5, 6]
    assert best_rounds(lines(tmp_path)) == {1}
    assert best_rounds([]) == set()
    chosen = [{"round": n, "evaluation": {"success": 1.0 - n, "choice": n}} for n in range(2)]
    assert best_rounds(chosen) == {1}, "a choice of its own goes before success"
    assert best_rounds([{"round": 0, "evaluation": {"success": 1.0, "choice": None}}]) == set()
    run_toy(tmp_path / "seldom", rounds=5, plan={"evaluate": evaluate, "evaluate_every": 2})
    assert [record["round"] for record in lines(tmp_path / "seldom") if "evaluation" in record] == [0, 2, 4, 5]


def test_a_round_without_quorum_stops_the_run_and_loses_nothing(run_toy: Run, tmp_path: Path) -> None:
    faults = {"2": {"0": "raise", "1": "raise", "2": "nan"}}
    with pytest.raises(QuorumError, match="round 2: 1 of 4"):
        run_toy(tmp_path, faults=faults)
    assert [record["round"] for record in lines(tmp_path)] == [0, 1]
    well = run_toy(tmp_path)
    assert well.state.digest == run_toy(tmp_path / "calm").state.digest


def test_a_full_disk_leaves_the_round_before(run_toy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_toy(tmp_path, rounds=2)
    before = {path: path.read_bytes() for path in (tmp_path / "rounds").rglob("*") if path.is_file()}
    real = os.fsync

    def full(handle: int) -> None:
        if "rounds" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"round 3 could not be committed .*No space left.*the round before is intact"):
        run_toy(tmp_path, rounds=3)
    assert {path: path.read_bytes() for path in (tmp_path / "rounds").rglob("*") if path.is_file()} == before
    monkeypatch.undo()
    assert run_toy(tmp_path, rounds=3).state.digest == run_toy(tmp_path / "calm", rounds=3).state.digest


def test_a_damaged_commit_is_noticed(run_toy: Run, tmp_path: Path) -> None:
    run_toy(tmp_path, rounds=2)
    file = tmp_path / "rounds" / "0002" / "global.bin"
    good = file.read_bytes()
    file.write_bytes(good[:-4] + b"\0\0\0\1")
    with pytest.raises(DataError, match="damaged"):
        run_toy(tmp_path, rounds=3)
    file.write_bytes(good)
    header = tmp_path / "rounds" / "0002" / "round.json"
    header.write_text("{}")
    with pytest.raises(DataError, match="malformed"):
        run_toy(tmp_path, rounds=3)


def test_a_global_state_with_a_nan_is_never_committed(toy: ModuleType, run_toy: Run, tmp_path: Path) -> None:
    class Poisoned(toy.Toy):  # type: ignore[name-defined,misc]
        def run_round(self, state: ServerState, this_round: Any) -> Any:
            result = super().run_round(state, this_round)
            if this_round.number != 2:
                return result
            spoilt = np.array(result.state.parameters["w"])
            spoilt[0] = np.nan
            return replace(result, state=ServerState({"w": spoilt}))

    original, toy.build = toy.build, Poisoned
    try:
        with pytest.raises(DataError, match="round 2 would make 'weights/w'"):
            run_toy(tmp_path)
    finally:
        toy.build = original
    assert CommitStore(tmp_path / "rounds").list_rounds() == [0, 1]


def test_two_processes_cannot_share_a_run(run_toy: Run, tmp_path: Path) -> None:
    from fedagentgym.federation.commits import lock_folder

    with lock_folder(tmp_path), pytest.raises(DataError, match="another process is working on"):
        run_toy(tmp_path)
    with pytest.raises(OptionError, match="at least one client"):
        run_toy(tmp_path, clients=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot use the run folder"):
        run_toy(tmp_path / "file")


@pytest.mark.parametrize("moved", [True, False])
def test_a_folder_that_is_moved_or_removed_in_mid_run_is_told(run_toy: Run, tmp_path: Path, moved: bool) -> None:
    folder, kept = tmp_path / "run", tmp_path / "kept"

    class Mover:
        def begin(self, rounds: int) -> None:
            assert rounds == 3

        def round_done(self, record: Mapping[str, Any]) -> None:
            if record["round"] == 1:
                folder.replace(kept) if moved else shutil.rmtree(folder)

    with pytest.raises(DataError, match="run was moved or removed while the run was working"):
        run_toy(folder, plan={"observers": [Mover()]})
    assert not (folder / "rounds").exists()
    if moved:
        assert CommitStore(kept / "rounds").list_rounds() == [0, 1]
        run_toy(kept)
        assert CommitStore(kept / "rounds").list_rounds()[-1] == 3


def test_a_file_system_without_locks_holds_a_run(
    run_toy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    run_toy(tmp_path)
    assert CommitStore(tmp_path / "rounds").list_rounds()[-1] == 3
    assert any("has no locks" in record.getMessage() for record in caplog.records)


def test_participants_are_distinct_uniform_and_a_function_of_seed_and_round() -> None:
    counts = np.zeros(10)
    for number in range(600):
        drawn = draw_participants(3, number, range(10), 2)
        assert len(set(drawn)) == 2
        assert list(drawn) == sorted(drawn)
        assert drawn == draw_participants(3, number, range(10), 2)
        counts[list(drawn)] += 1
    assert abs(counts - 120).max() < 5 * np.sqrt(600 * 0.2 * 0.8)
    assert draw_participants(3, 1, range(3), 5) == (0, 1, 2)


def test_a_torn_journal_is_read_up_to_the_tear(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert list(read_metrics_log(file)) == []
    file.write_bytes(b'{"round":0}\n{"round":1}\n{"rou')
    assert [record["round"] for record in read_metrics_log(file)] == [0, 1]
    file.write_bytes(b'{"round":0}\n\xff\xfe\n{"round":2}\n')
    assert [record["round"] for record in read_metrics_log(file)] == [0]


def test_the_idle_cost_of_a_thousand_clients_is_small(run_toy: Run, tmp_path: Path) -> None:
    import tracemalloc

    tracemalloc.start()
    run_toy(tmp_path, rounds=2, clients=1000, per_round=5, size=50_000)
    current, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert current < 20_000_000
    assert peak < 60_000_000


def test_a_metric_that_is_not_finite_is_left_out_of_the_record(
    toy: ModuleType, run_toy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {"good": 1, "nan": float("nan"), "infinite": float("inf")}

    class Measured(toy.Toy):  # type: ignore[name-defined,misc]
        def run_round(self, state: ServerState, this_round: Any) -> Any:
            return replace(super().run_round(state, this_round), metrics=numbers, clients={2: numbers})

    monkeypatch.setattr(toy, "build", Measured)
    run_toy(tmp_path, rounds=1)
    assert lines(tmp_path)[1]["metrics"] == {"good": 1.0}
    assert lines(tmp_path)[1]["clients"] == {"2": {"good": 1.0}}
