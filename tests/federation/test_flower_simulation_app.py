"""`flwr run` of a fresh app in Flower's default simulation, as a user of Flower types it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.flower_app import read_changes
from fedagentgym.experiment.run import train
from tests.federation.test_flower import BIN, FEDAGENT, QUIET, free_port


def test_a_run_config_changes_settings() -> None:
    pytest.importorskip("flwr")
    assert read_changes({"run": "x", "rounds": "", "seed": "", "folder": "", "set": ""}) == []
    given = {"rounds": 5, "seed": 0, "folder": "/a b", "set": "learning.tasks_per_step=4 'name=x y'"}
    expected = ["federation.rounds=5", "seed=0", "output.folder=/a b", "learning.tasks_per_step=4", "name=x y"]
    assert read_changes(given) == expected
    for twice in ({"rounds": 5, "set": "federation.rounds=6"}, {"set": "seed=1 seed=2"}, {"seed": 1, "set": "seed=2"}):
        with pytest.raises(OptionError, match=r"the app's run config gives (federation\.rounds|seed) 2 times"):
            read_changes(twice)
    assert read_changes({"folder": "~/runs"}) == [f"output.folder={Path.home() / 'runs'}"]


@pytest.mark.slow
def test_the_default_simulation_ends_where_one_process_ends(tmp_path: Path) -> None:
    """Two simulated nodes stand for three clients, whose states go back and forth."""
    pytest.importorskip("flwr")
    config = merge(FEDAGENT, {"partition": {"clients": 3}, "output": {"folder": str(tmp_path / "run")}})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert main(["flower", "init", str(tmp_path / "app"), "--config", str(tmp_path / "run.yaml")]) == 0
    ports = {"FLWR_LOCAL_CONTROL_API_PORT": str(free_port()), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port())}
    env = {**os.environ, **QUIET, **ports, "FLWR_HOME": str(tmp_path / "flwr"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [str(BIN / "flwr"), "run", "app", "--stream", "--run-config", f'seed=4 folder="{tmp_path / "other"}"']
    try:
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500, check=False)
    finally:
        stop_local_superlink(tmp_path / "flwr")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "other" / "result.json").read_text())["state"]
    alone = train(merge(config, {"seed": 4, "output": {"folder": str(tmp_path / "alone")}}))
    assert found == alone.digest and not (tmp_path / "run").exists()
    assert len(list((tmp_path / "other").rglob("*.state"))) >= 3


def stop_local_superlink(home: Path) -> None:
    """End the SuperLink that `flwr run` has left running."""
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        try:
            words = (entry / "cmdline").read_text().split("\0") if entry.name.isdecimal() else []
        except OSError:
            continue
        if any(re.search("flower-superlink", word) for word in words) and any(str(home) in word for word in words):
            os.kill(int(entry.name), signal.SIGTERM)
