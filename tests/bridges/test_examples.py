"""Every example that the installed libraries allow is run; the others in `tests/installs`, in environments of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOWN = {
    "environment_loop.py": "success: True",
    "split.py": "belongs to the last client: True",
    "gymnasium_text.py": "You stand in row 1, column 0.",
    "reasoning_gym_clients.py": "Right. 1.0",
    "to_dataset.py": "num_rows: 20",
    "trl_rollouts.py": "3 steps",
    "trl_tools.py": "reward so far: 0.0",
}
APART = {"flower_datasets.py", "openenv_server.py"}
LIBRARY = {"reasoning_gym_clients.py": "reasoning_gym", "trl_rollouts.py": "trl", "to_dataset.py": "datasets"}


def test_every_example_is_run_somewhere(root: Path) -> None:
    assert {path.name for path in (root / "examples").glob("*.py")} == set(SHOWN) | APART


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(name: str, root: Path, tmp_path: Path) -> None:
    if name in LIBRARY:
        pytest.importorskip(LIBRARY[name])
    found = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(root / "examples" / name)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": found, "TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert SHOWN[name] in done.stdout
