"""A whole run on two ranks: the global model of one, also after a kill or Ctrl-C, and resumed by another number of ranks."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedagentgym.federation.commits import Commit, CommitStore
from tests.learning.ranks import finish, start_ranks

RUN: dict[str, Any] = {
    "env": {"id": "fedagentgym/Guess-v0", "options": {"max_turns": 3}},
    "agent": {"name": "untrained-tiny", "device": "cpu", "decoding": {"max_new_tokens": 6}},
    "partition": {"sampler": "coverage", "clients": 2, "xi": 2.0, "mean_tasks": 8},
    "learning": {
        "tasks_per_step": 2,
        "group_size": 2,
        "learning_rate": 1e-4,
        "keep_optimizer": True,
        "objectives": [{"name": "length"}],
    },
    "algorithm": {"name": "fedagent", "local_steps": 2},
    "federation": {"rounds": 2, "workers": 0},
    "evaluation": {"tasks": 2, "every": 1},
    "output": {"report": "none"},
}
pytestmark = pytest.mark.slow


def write(folder: Path, sharding: object = None, rounds: int = 2) -> str:
    """A configuration of the run in this folder."""
    plain = {**RUN, "output": {**RUN["output"], "folder": str(folder)}}
    plain["learning"] = {**RUN["learning"], "sharding": sharding}
    plain["federation"] = {**RUN["federation"], "rounds": rounds}
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(plain))
    return str(file)


def begin(folder: Path, rounds: int) -> list[subprocess.Popen[str]]:
    """Two ranks that have finished the first round."""
    processes = start_ranks(2, "fedagentgym", "train", write(folder, {"devices": 2}, rounds))
    while not (folder / "rounds" / "0001").exists():
        assert processes[0].poll() is None, finish(processes, [0, 0])
        time.sleep(0.02)
    return processes


def resume(folder: Path, *changes: str, ranks: int = 2) -> None:
    if ranks > 1:
        finish(start_ranks(ranks, "fedagentgym", "resume", str(folder), *changes), [0] * ranks)
    else:
        subprocess.run([sys.executable, "-m", "fedagentgym", "resume", str(folder), *changes], check=True)


def read(folder: Path) -> Commit:
    commits = CommitStore(folder / "rounds")
    return commits.read(commits.list_rounds()[-1])


def find_difference(first: Commit, second: Commit) -> float:
    ours, theirs = first.state.parameters, second.state.parameters
    return max(float(np.abs(value - theirs[name]).max()) for name, value in ours.items())


def test_a_run_on_two_ranks_is_that_on_one(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "fedagentgym", "train", write(tmp_path / "one")], check=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "fedagentgym", "train", write(tmp_path / "two", {"devices": 2})]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.count("result.json") == 1, "one rank prints"
    two = read(tmp_path / "two")
    assert two.round == 2
    assert find_difference(read(tmp_path / "one"), two) < 1e-6


def test_lost_and_interrupted_runs_continue_to_the_same_bits(tmp_path: Path) -> None:
    rounds = 4
    finish(start_ranks(2, "fedagentgym", "train", write(tmp_path / "calm", {"devices": 2}, rounds)), [0, 0])
    calm = read(tmp_path / "calm")

    lost = begin(tmp_path / "lost", rounds)
    lost[1].kill()
    said, _ = finish(lost, [2, -signal.SIGKILL])
    assert said.count("fedagentgym: ") == 1
    assert "rank 0 of 2 (cpu) lost another rank, which has ended; the ranks of a sharded run end together" in said
    assert read(tmp_path / "lost").round < rounds
    resume(tmp_path / "lost")
    assert read(tmp_path / "lost").state.digest == calm.state.digest

    stopped = begin(tmp_path / "stopped", rounds)
    stopped[0].send_signal(signal.SIGINT)
    stopped[1].send_signal(signal.SIGINT)
    said, other = finish(stopped, [2, 2])
    assert said.count("fedagentgym: ") == 1
    assert f"interrupted: {tmp_path / 'stopped'} is saved up to round" in said
    assert "resume with: torchrun --nproc-per-node 2 -m fedagentgym resume" in said
    assert not other
    assert read(tmp_path / "stopped").round < rounds
    resume(tmp_path / "stopped", "--set", "learning.sharding=null", ranks=1)
    assert find_difference(read(tmp_path / "stopped"), calm) < 1e-6
