"""A federated round stays short enough to be read: how many functions and files of the package it touches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_FUNCTIONS, MOST_FILES = 744, 87
"""The numbers that were reached, with a few to spare; lower them when a round touches less."""


def test_a_round_touches_few_functions_and_files() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(ROOT / "tests" / "count_round.py"), "--files"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    functions, _, _, files, _ = done.stdout.splitlines()[-1].split()
    assert int(functions) <= MOST_FUNCTIONS and int(files) <= MOST_FILES, done.stdout


def test_a_clients_environment_is_made_in_few_functions_and_files() -> None:
    command = [sys.executable, str(ROOT / "tests" / "count_make.py"), "--functions"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = next(line for line in done.stdout.splitlines() if line.startswith("in memory: "))
    functions, files = (int(word) for word in told.split() if word.isdecimal())
    assert functions <= 40 and files <= 12, done.stdout
