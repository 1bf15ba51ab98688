"""kill -9 at random instants: whatever was lost, the run ends at the same parameters, records and trajectories."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.commits import Commit, CommitStore
from fedagentgym.federation.records import drop_times

PROGRAM = """
import sys
from pathlib import Path
from fedagentgym.base.imports import load_plugins, module_name
from fedagentgym.federation.exchange import ApplicationSpec
load_plugins((sys.argv[1],))
name = module_name(Path(sys.argv[1]))
toy = sys.modules[name]
from fedagentgym.federation.backends.in_process import open_backend
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.federation.algorithm import FederationSettings
folder, workers = Path(sys.argv[2]), int(sys.argv[3])
arguments = {"pause": 0.05, "calls": 2, "size": 20000, "shown": True}
recipe = ApplicationSpec(f"{name}:build", arguments, (sys.argv[1],))
backend = open_backend(recipe, workers=workers, folder=folder / "states")
settings = FederationSettings(rounds=12, clients_per_round=3)
look = lambda number, state: {"success": float(state.parameters["w"][0])}
run_rounds(toy.build(**arguments, clients=6), backend, ServerConfig(folder, 0, settings, evaluate=look))
backend.close()
"""


def crash_and_resume(folder: Path, workers: int, kills: int, seed: int) -> int:
    """Start the run, kill it after a random while, go on; returns how many kills hit it alive."""
    chance = random.Random(seed)
    hit = 0
    toy_file = str(Path(__file__).with_name("toy.py"))
    command = [sys.executable, "-c", PROGRAM, toy_file, str(folder), str(workers)]
    while hit < kills:
        process = subprocess.Popen(command)
        begun = folder / ".lock"
        while process.poll() is None and not begun.exists():
            time.sleep(0.01)
        try:
            process.wait(timeout=chance.uniform(0.05, 0.7))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            hit += 1
        code = process.wait()
        assert code in (0, -signal.SIGKILL), "the program itself is broken"
        if code == 0:
            break
    assert subprocess.run(command, check=False, timeout=120).returncode == 0
    return hit


def check(run_toy: Callable[..., Commit], tmp_path: Path, workers: int, kills: int, seed: int) -> None:
    options = {"rounds": 12, "clients": 6, "per_round": 3, "calls": 2, "size": 20000, "shown": True}

    def look(number: int, state: ServerState) -> dict[str, float]:
        return {"success": float(state.parameters["w"][0])}

    calm = run_toy(tmp_path / "calm", **options, plan={"evaluate": look})
    hit = crash_and_resume(tmp_path / "killed", workers, kills, seed)
    commits = CommitStore(tmp_path / "killed" / "rounds")
    assert commits.list_rounds()[-1] == 12
    final = commits.read(12)
    assert final.state.digest == calm.state.digest
    assert final.heads == calm.heads
    records = [json.loads(line) for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(13))
    assert all("evaluation" in record for record in records)
    assert final.digest == calm.digest
    assert list_lasting_records(tmp_path / "killed") == list_lasting_records(tmp_path / "calm")
    assert read_trajectories(tmp_path / "killed") == read_trajectories(tmp_path / "calm") != {}
    assert not list((tmp_path / "killed").rglob("*.part"))
    assert hit >= min(kills, 2)


def list_lasting_records(folder: Path) -> list[object]:
    """The lines of metrics without what depends on the time and on the process."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [{**record.pop("evaluation"), "seconds": 0.0} for record in records]
    return [*map(drop_times, records), *evaluations]


def read_trajectories(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "trajectories").iterdir()}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_three_kills(run_toy: Callable[..., Commit], tmp_path: Path, workers: int) -> None:
    check(run_toy, tmp_path, workers, kills=3, seed=workers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_thirty_kills(run_toy: Callable[..., Commit], tmp_path: Path, seed: int) -> None:
    check(run_toy, tmp_path, workers=seed % 3, kills=3, seed=100 + seed)
