"""Run by `test_bridges_apart.py`: trackers whose libraries are installed apart write a run to this machine, without network."""

from __future__ import annotations

import os
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path.cwd() / "run"
os.environ["TRACKIO_DIR"] = str(Path.cwd() / "trackio")

from fedagentgym.experiment.trackers import make_tracker  # noqa: E402 - the variable is read at import


def forbid_network() -> None:
    """A connection to anything but this machine is an error."""
    connect = socket.socket.connect

    def check(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a tracker connects to {address}")
        connect(self, address)

    socket.socket.connect = check  # type: ignore[method-assign]


def write_run(name: str) -> None:
    """A run of three rounds as a tracker sees it."""
    tracker = make_tracker({"name": name})
    config = {"name": f"check-{name}", "federation": {"rounds": 2}, "output": {"folder": str(FOLDER)}}
    tracker.start(config)
    for round_number in range(3):
        tracker.log(round_number, {"train/reward": 0.5 * round_number, "client_3/groups/constant": 1.0})
    tracker.finish({"name": config["name"], "rounds": 2})


def check_mlflow() -> None:
    """The curves and files that MLflow reads back."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{FOLDER}/mlflow.db")
    (experiment,) = (one for one in client.search_experiments() if one.name == "fedagentgym")
    (run,) = client.search_runs([experiment.experiment_id])
    assert [point.value for point in client.get_metric_history(run.info.run_id, "train/reward")] == [0.0, 0.5, 1.0]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"report.html", "settings.json"}
    assert run.info.status == "FINISHED"


def check_trackio() -> None:
    """The curves that trackio reads back."""
    import trackio

    (run,) = trackio.Api().runs("fedagentgym")
    assert run.name == "check-trackio", run.name


def main() -> None:
    forbid_network()
    FOLDER.mkdir()
    (FOLDER / "report.html").write_text("<p>page</p>")
    (FOLDER / "config.yaml").write_text("name: check\n")
    for name in ("mlflow", "trackio", "wandb"):
        write_run(name)
    check_mlflow()
    check_trackio()
    assert list(FOLDER.rglob("*.wandb")), "no offline run of wandb"
    sys.stdout.write(
        "checked with " + ", ".join(f"{name} {version(name)}" for name in ("mlflow", "trackio", "wandb")) + "\n"
    )


if __name__ == "__main__":
    main()
