"""Every example that the installed libraries allow is run; the others in `tests/installs`, in environments of their own."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHOWN = {
    "environment_loop.py": "success: True",
    "split.py": "belongs to the last client: True",
    "own_environment.py": "random succeeds",
    "own_algorithm.py": "the whole way is FedAgent to the bit: True",
    "flower_strategy.py": "FedYogi 2 rounds, 0 failures",
    "hosted_model.py": "success 1.00",
    "gymnasium_text.py": "You stand in row 1, column 0.",
    "reasoning_gym_clients.py": "Right. 1.0",
    "to_dataset.py": "num_rows: 20",
}
ALONE = {"trl_tools.py": "reward so far: 0.0", "trl_rollouts.py": "21 to 25  0.9"}
"""Run in processes of their own, as the library leaves traces."""
APART = {"flower_datasets.py", "openenv_server.py", "verifiers_taskset.py"}
LIBRARY = {
    "reasoning_gym_clients.py": "reasoning_gym",
    "to_dataset.py": "datasets",
    "own_algorithm.py": "torch",
    "flower_strategy.py": "flwr",
}


def test_every_example_is_run_somewhere(root: Path) -> None:
    assert {path.name for path in (root / "examples").glob("*.py")} == set(SHOWN) | set(ALONE) | APART | {
        "flower_app.py"
    }


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_shows_what_it_says(
    name: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in LIBRARY:
        pytest.importorskip(LIBRARY[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(root / "examples" / name), run_name="__main__")
    assert SHOWN[name] in capsys.readouterr().out


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", ALONE)
def test_an_example_with_trl(name: str, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
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
    assert ALONE[name] in done.stdout


def test_flower_app_with_messages_carried_by_hand(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both apps of the example as Flower calls them, without the processes of its simulation engine."""
    flwr = pytest.importorskip("flwr.app")
    pytest.importorskip("flwr.simulation")
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity, name, 1)
    found = runpy.run_path(str(root / "examples" / "flower_app.py"), run_name="example")

    def make_context(node: int) -> Any:
        return flwr.Context(1, node, {"partition-id": node - 1, "num-partitions": 3}, flwr.RecordDict(), {})

    class Carrier:
        def get_node_ids(self) -> list[int]:
            return [3, 1, 2]

        def send_and_receive(self, messages: list[Any]) -> list[Any]:
            return [found["client_app"](one, make_context(one.metadata.dst_node_id)) for one in messages]

    found["server_app"](Carrier(), make_context(0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "expert: client 0 1.00, client 1 1.00, client 2 1.00; mean 1.00"
    assert lines[1].startswith("random: client 0 ") and len(lines) == 2


@pytest.mark.slow
def test_flower_app_in_the_simulation_engine(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    found = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(root / "examples" / "flower_app.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": found},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "expert: client 0 1.00, client 1 1.00, client 2 1.00; mean 1.00" in done.stdout
