"""The baseline of FedAgent in Flower's layout: its files say what Flower reads, and a run of it ends where one process ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedagentgym.algorithms import ALGORITHMS
from fedagentgym.experiment.config import load_config
from fedagentgym.experiment.run import train
from tests.federation.test_flower import BIN, QUIET, free_port
from tests.federation.test_flower_simulation_app import stop_local_superlink

FOLDER = Path(__file__).resolve().parents[2] / "baselines" / "fedagent"
ROWS = ["default", *sorted(path.name for path in (FOLDER / "conf").iterdir())]


def read_run_config(row: str) -> dict[str, Any]:
    """The run config of the app: its own defaults, changed by a file of conf/ as Flower changes them."""
    from flwr.common.config import fuse_dicts, parse_config_args

    own = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return dict(fuse_dicts(own, parse_config_args([] if row == "default" else [str(FOLDER / "conf" / row)])))


def test_flower_accepts_the_folder() -> None:
    pytest.importorskip("flwr")
    from flwr.cli.config_utils import load_and_validate

    config, warnings = load_and_validate(FOLDER / "pyproject.toml", check_module=True)
    assert not warnings
    assert config["project"]["name"] == FOLDER.name == "fedagent"
    assert (FOLDER / "LICENSE").read_text() == (FOLDER.parents[1] / "LICENSE").read_text()


def test_its_readme_has_what_an_index_of_baselines_reads() -> None:
    text = (FOLDER / "README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["url"].startswith("https://") and front["title"] and 4 <= len(front["labels"]) <= 10
    assert front["dataset"] == ["Skills", "WebShop", "ALFWorld"]
    sections = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert sections == [
        "About this baseline",
        "Experimental Setup",
        "Environment Setup",
        "Running the Experiments",
        "Expected Results",
    ]
    named = set(re.findall(r"conf/([\w*.-]+\.toml)", text))
    assert all(list((FOLDER / "conf").glob(pattern)) for pattern in named)
    assert {row.removesuffix(".toml") for row in ROWS[1:]} <= set(re.findall(r"`([\w-]+)`", text))


@pytest.mark.parametrize("row", ROWS)
def test_every_file_is_a_run_of_fedagent(row: str) -> None:
    pytest.importorskip("flwr")
    from fedagentgym.experiment.flower_app import read_changes

    given = read_run_config(row)
    config, plain = load_config(given["run"], read_changes(given)), load_config(given["run"])
    assert config.method.name in ("fedagent", "fedavg-grpo") and config.method.name in ALGORITHMS
    assert config.federation.rounds == plain.federation.rounds, "the file states the rounds of its run"
    assert config.seed == plain.seed
    assert Path(config.output.folder).is_absolute()


@pytest.mark.slow
def test_the_baseline_ends_where_one_process_ends(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    shutil.copytree(FOLDER, tmp_path / "fedagent", ignore=shutil.ignore_patterns("__pycache__"))
    ports = {"FLWR_LOCAL_CONTROL_API_PORT": str(free_port()), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port())}
    env = {**os.environ, **QUIET, **ports, "FLWR_HOME": str(tmp_path / "flwr"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    env |= {"HOME": str(tmp_path), "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    changes = ["evaluation=null", "learning.group_size=2", "algorithm.local_steps=1"]
    told = f'run="tiny-skills:fedavg-grpo" rounds=1 set="{" ".join(changes)}"'
    command = [str(BIN / "flwr"), "run", ".", "--stream", "--run-config", told]
    try:
        done = subprocess.run(
            command, cwd=tmp_path / "fedagent", env=env, capture_output=True, text=True, timeout=500, check=False
        )
    finally:
        stop_local_superlink(tmp_path / "flwr")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "fedagentgym-runs" / "fedagent" / "result.json").read_text())["state"]
    folder = f"output.folder={tmp_path / 'alone'}"
    assert found == train("tiny-skills:fedavg-grpo", ["federation.rounds=1", *changes, folder]).digest
