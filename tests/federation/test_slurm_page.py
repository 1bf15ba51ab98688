"""The job scripts of the page about Slurm, with stand-ins for `srun` and `scontrol`, on a processor."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedagentgym.experiment.run import train

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "run-on-slurm.md"
RUN = """
env: {id: fedagentgym/Guess-v0}
agent: untrained-tiny
partition: {sampler: preference, clients: 2, tasks_per_client: 8, omega: 0.9}
learning: {tasks_per_step: 2, group_size: 3, learning_rate: 1.0e-3}
algorithm: {name: fedagent, local_steps: 1}
federation: {rounds: 60}
evaluation: null
output: {folder: run, report: none}
"""
STAND_INS = {
    "srun": 'exec "$@"',
    "scontrol": 'echo "$@" >> requeued',
    "fedagentgym": f'exec {sys.executable} -m fedagentgym -q "$@"',
}


def read_script(heading: str) -> str:
    section = PAGE.read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (script,) = re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(script)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The variables of a job whose commands are the stand-ins."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, body in STAND_INS.items():
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    home = {"HOME": str(tmp_path), "SLURM_JOB_ID": "7"}
    return {**os.environ, **home, "PATH": f"{commands}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_a_job_that_meets_its_limit_is_queued_again_and_goes_on(tmp_path: Path, job: dict[str, str]) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "job.sh").write_text(read_script("One run that survives its time limit"))
    first = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=job, start_new_session=True)
    for _ in range(600):
        if len(list((tmp_path / "run" / "rounds").glob("*"))) > 2:
            break
        time.sleep(0.1)
    (running,) = subprocess.run(
        ["pgrep", "-P", str(first.pid)], check=True, capture_output=True, text=True
    ).stdout.split()
    os.kill(int(running), signal.SIGINT)  # to the job's step alone
    first.wait(timeout=120)
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert not (tmp_path / "run" / "result.json").exists()
    subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=job, check=True, timeout=300)
    whole = train(tmp_path / "run.yaml", [f"output.folder={tmp_path / 'whole'}"])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["state"] == whole.digest


@pytest.mark.slow
def test_jobs_of_an_array_play_rows_of_a_suite(tmp_path: Path, job: dict[str, str]) -> None:
    script = read_script("A suite, one row per job").replace("methods-small-skills-v1", "smoke")
    (tmp_path / "job.sh").write_text(script.replace("rows=(zero-shot local-0 fedagent)", "rows=(zero-shot fedagent)"))
    for place in range(2):
        given = {**job, "SLURM_ARRAY_TASK_ID": str(place)}
        subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=given, check=True, timeout=300)
    assert sorted(path.stem for path in (tmp_path / "results").rglob("*.zip")) == ["fedagent", "zero-shot"]
