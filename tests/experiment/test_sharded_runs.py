"""A whole run whose updates span two ranks: the same global model as on one, and resumed after a kill, also by another number."""

from __future__ import annotations

import json
import os
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

RUN: dict[str, Any] = {
    "plugins": ["fedagentgym.testing.untrained"],
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
    "federation": {"rounds": 2},
    "evaluation": {"tasks": 2, "every": 1},
    "output": {"report": "none"},
}


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedagentgym.cli", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = process.communicate(timeout=500)
    assert process.returncode == code, said
    return said


def begin(folder: Path, *, workers: int = 0, **sharding: object) -> subprocess.Popen[str]:
    plain = {**RUN, "output": {**RUN["output"], "folder": str(folder)}}
    plain["federation"] = {**RUN["federation"], "workers": workers}
    plain["learning"] = {**RUN["learning"], **sharding}
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(plain))
    return start(str(file))


def read(folder: Path) -> Commit:
    commit = CommitStore(folder / "rounds").read_latest()
    assert commit is not None
    return commit


def find_difference(first: Commit, second: Commit) -> float:
    ours, theirs = first.state.parameters, second.state.parameters
    return max(float(np.abs(value - theirs[name]).max()) for name, value in ours.items())


def find_followers(parent: int) -> list[int]:
    """The processes of the other ranks that a process has started, itself or by its workers."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"fedagentgym.learning.sharding.follower" in words and words[-2] == str(parent).encode():
            found.append(int(place.name))
    return found


@pytest.mark.slow
def test_a_run_on_two_ranks_is_that_on_one_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    finish(begin(tmp_path / "one"))
    finish(begin(tmp_path / "two", sharding={"devices": 2}))
    calm = read(tmp_path / "two")
    assert calm.round == 2
    assert find_difference(read(tmp_path / "one"), calm) < 1e-6

    for name, resumed in (("same", ()), ("other", ("--set", "learning.sharding=null"))):
        folder = tmp_path / name
        process = begin(folder, sharding={"devices": 2})
        while not (folder / "rounds" / "0001").exists():
            assert process.poll() is None, finish(process)
            time.sleep(0.05)
        followers = find_followers(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        finish(start("--resume", str(folder), *resumed))
        assert followers
        assert not any(Path(f"/proc/{pid}").exists() for pid in followers), (
            "followers end with the process that they follow"
        )
        if name == "same":
            assert read(folder).state.digest == calm.state.digest
        else:
            assert find_difference(read(folder), calm) < 1e-6


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_a_run_with_one_sentence_or_costs_a_worker(tmp_path: Path) -> None:
    process = begin(tmp_path / "alone", sharding={"devices": 2})
    while not (followers := find_followers(process.pid)):
        assert process.poll() is None, finish(process)
        time.sleep(0.02)
    while not (tmp_path / "alone" / "rounds" / "0001").exists():
        time.sleep(0.02)
    os.kill(followers[0], signal.SIGKILL)
    said = finish(process, 2)
    assert "rank 1 of 2 (cpu) of the sharded model ended (killed by signal 9)" in said
    assert "Traceback" not in said
    finish(start("--resume", str(tmp_path / "alone")))

    pooled = begin(tmp_path / "pool", workers=1, sharding={"devices": 2})
    killed = False
    while pooled.poll() is None and not killed:
        children = Path(f"/proc/{pooled.pid}/task/{pooled.pid}/children").read_text().split()
        for pid in [follower for child in children for follower in find_followers(int(child))]:
            os.kill(pid, signal.SIGKILL)
            killed = True
        time.sleep(0.02)
    finish(pooled)
    assert killed
    lines = (tmp_path / "pool" / "metrics.jsonl").read_text().splitlines()
    assert not any(json.loads(line)["failures"] for line in lines)
    assert read(tmp_path / "pool").state.digest == read(tmp_path / "alone").state.digest
