"""An installed package that names a module in the group `fedagentgym.plugins` is found without a `plugins:` line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REGISTER = """
import fedagentgym
from fedagentgym.envs.guess import GuessEnv
from fedagentgym.learning.advantages import AdvantageEstimator, episode_advantages


class QuietGuessEnv(GuessEnv):
    "Guess a number, quietly."

    id = "me/QuietGuess-v0"


class Halved(AdvantageEstimator):
    def estimate(self, group, rewards):
        return tuple(part / 2 for part in episode_advantages(rewards, "none", "trajectories"))


fedagentgym.register_env("me/QuietGuess-v0", QuietGuessEnv)
fedagentgym.register_advantage("halved", Halved)
"""
ENTRY_POINTS = """[fedagentgym.plugins]
me/QuietGuess-v0 = quiet_pack.register
broken = no_such_module_anywhere
"""
PROGRAM = """
import json, sys
import gymnasium
import fedagentgym

heavy = [name for name in ("quiet_pack", "torch", "pydantic") if name in sys.modules]
made = type(gymnasium.make("me/QuietGuess-v0").unwrapped).__name__
config = {
    "env": {"id": "me/QuietGuess-v0"},
    "partition": {"clients": 2, "tasks_per_client": 4},
    "agent": "untrained-tiny",
    "learning": {"tasks_per_step": 1, "group_size": 3, "advantage": "halved"},
    "federation": {"rounds": 1, "workers": 1},
    "evaluation": None,
    "output": {"report": "none", "folder": "run"},
}
record = fedagentgym.train(config).record
print(json.dumps({"heavy": heavy, "made": made, "failures": record["failures"], "rounds": record["rounds"]}))
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment variables of a process in which a package of plugins is installed."""
    pytest.importorskip("torch")
    package, metadata = tmp_path / "site" / "quiet_pack", tmp_path / "site" / "quiet_pack-1.0.dist-info"
    package.mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (package / "register.py").write_text(REGISTER)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet-pack\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(tmp_path / "site")])}


def test_an_installed_package_is_found_by_its_names(installed: dict[str, str], tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=installed, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"heavy": [], "made": "QuietGuessEnv", "failures": 0, "rounds": 1}
    assert "the installed package quiet-pack is left out: cannot load the plugin 'no_such" in done.stderr
    listed = run("-c", "import sys; from fedagentgym.cli.main import main; sys.exit(main(['envs', 'quietguess']))")
    assert listed.returncode == 0 and "me/QuietGuess-v0" in listed.stdout
