"""Run by `test_bridges_apart.py`: trackers whose libraries are installed apart write runs of two seeds to this machine, of which
one is killed and resumed, without network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path.cwd() / "run"
SHARED = f"sqlite:///{Path.cwd()}/shared.db"
TRACKERS: dict[str, dict[str, Any]] = {
    "own store": {"name": "mlflow"},
    "shared store": {"name": "mlflow", "uri": SHARED},
    "trackio": {"name": "trackio"},
    "wandb": {"name": "wandb"},
}
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


def write_run(case: str, seed: int, rounds: range) -> None:
    """Some rounds of a run as a tracker sees them; the run is over if the last of them is its last."""
    tracker = make_tracker(TRACKERS[case])
    output = {"folder": str(FOLDER / f"seed{seed}")}
    tracker.start({"name": "check", "seed": seed, "federation": {"rounds": 2}, "output": output})
    for number in rounds:
        tracker.log(number, {"train/reward": 0.5 * number + seed, "client_3/groups/constant": 1.0})
    if rounds.stop == 3:
        tracker.finish({"name": "check", "rounds": 2})
    else:
        time.sleep(3)  # trackio writes now and then
        os._exit(9)


def check_mlflow(store: str, seeds: tuple[int, ...]) -> None:
    """The curves and files that MLflow reads back."""
    import mlflow

    client = mlflow.MlflowClient(store)
    (experiment,) = (one for one in client.search_experiments() if one.name == "fedagentgym")
    runs = sorted(client.search_runs([experiment.experiment_id]), key=lambda run: str(run.info.run_name))
    assert [run.info.run_name for run in runs] == [f"check-seed{seed}" for seed in seeds], runs
    for seed, run in zip(seeds, runs, strict=True):
        values = [point.value for point in client.get_metric_history(run.info.run_id, "train/reward")]
        assert values == [seed + 0.0, seed + 0.5, seed + 1.0], values
        assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"report.html", "settings.json"}
        assert run.info.status == "FINISHED" and run.data.params["seed"] == str(seed), run
        assert run.data.params["federation.rounds"] == "2" and run.data.tags["fedagentgym_group"] == "check"


def check_trackio() -> None:
    """The curves that trackio reads back."""
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    names = sorted(run.name for run in trackio.Api().runs("fedagentgym"))
    assert [name.rpartition("-")[0] for name in names] == ["check-seed0", "check-seed1"], names
    for seed, name in enumerate(names):
        rows = [row for row in SQLiteStorage.get_logs("fedagentgym", name) if "train/reward" in row]
        found = [(row["step"], row["train/reward"]) for row in rows]
        assert found == [(number, 0.5 * number + seed) for number in range(3)], found


def check_wandb() -> None:
    """The folders that wandb sends later: the parts of one run have one id."""
    parts = [sorted((FOLDER / f"seed{seed}").rglob("*.wandb")) for seed in (0, 1)]
    assert [len(one) for one in parts] == [2, 1], parts
    assert [len({file.name for file in one}) for one in parts] == [1, 1] and parts[0][0].name != parts[1][0].name, parts


def main() -> None:
    forbid_network()
    if len(sys.argv) > 1:
        write_run(sys.argv[1], 0, range(2))
    for seed in (0, 1):
        (FOLDER / f"seed{seed}").mkdir(parents=True)
        (FOLDER / f"seed{seed}" / "report.html").write_text("<p>page</p>")
        (FOLDER / f"seed{seed}" / "config.yaml").write_text("name: check\n")
    for case in TRACKERS:
        killed = subprocess.run([sys.executable, __file__, case], check=False)
        assert killed.returncode == 9, killed
        write_run(case, 1, range(3))
        write_run(case, 0, range(2, 3))
    check_mlflow(f"sqlite:///{FOLDER}/seed0/mlflow.db", (0,))
    check_mlflow(SHARED, (0, 1))
    check_trackio()
    check_wandb()
    sys.stdout.write(
        "checked with " + ", ".join(f"{name} {version(name)}" for name in ("mlflow", "trackio", "wandb")) + "\n"
    )


if __name__ == "__main__":
    main()
