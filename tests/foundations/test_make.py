"""The way to a client's environment stays short enough to be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_clients_environment_is_made_in_few_functions_and_files() -> None:
    command = [sys.executable, str(ROOT / "tests" / "count_make.py"), "--functions"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = next(line for line in done.stdout.splitlines() if line.startswith("in memory: "))
    functions, files = (int(word) for word in told.split() if word.isdecimal())
    assert functions <= 40 and files <= 12, done.stdout
