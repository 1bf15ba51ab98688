"""Federated averaging of the same arrays by Flower's own strategy on its simulation engine, and by ours.

Every way has its own process, the same number of workers and the same idle clients (`idle.py`); all end in the same model. A
round is timed by the wall, since several processes share its work.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

from fedagentgym.base.errors import DataError
from fedagentgym.base.extras import require
from fedagentgym.base.measurement import Measurement
from fedagentgym.benchmarks.speed.idle import IdleAlgorithm, disable_fsync, shift_weights, time_round
from fedagentgym.federation.backends.flower_simulation import FLOWER_VARIABLES

WORKERS = 2
OURS = ("flower-simulation", "in-process")


def measure_beside_flower(clients: int, floats: int, rounds: int) -> list[Measurement]:
    """Seconds of a round of Flower's FedAvg and of ours, on its engine and on our own workers; nothing without Flower."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        return []
    seconds = {way: _time_in_process(way, clients, floats, rounds) for way in ("flower", *OURS)}
    size = f"{clients} clients and {4 * floats / 1e6:g} MB, {WORKERS} workers"
    names = {
        "flower": f"Flower's FedAvg on its simulation engine, {size}",
        "flower-simulation": "our round on Flower's simulation engine",
        "in-process": "our round on our own workers",
    }
    found = [Measurement(names[way], 1000 * taken, "ms by the wall") for way, taken in seconds.items()]
    for way in OURS:
        found.append(Measurement(f"Flower's FedAvg / {names[way]}", seconds["flower"] / seconds[way], "times"))
    return found


def _time_in_process(way: str, *numbers: int) -> float:
    command = [sys.executable, "-m", __spec__.name, way, *map(str, numbers)]
    variables = {**os.environ, **FLOWER_VARIABLES, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise DataError(f"the process that timed {way!r} ended without an answer: {done.stderr.strip()[-300:]}")
    return float(json.loads(lines[-1])["seconds"])


def time_strategy(clients: int, floats: int, rounds: int) -> float:
    """The fastest round of Flower's own FedAvg; every client adds to its weights what ours add."""
    flower, apps = require("flwr.app", "flower"), require("flwr.clientapp", "flower")
    serverapp, strategy = require("flwr.serverapp", "flower"), require("flwr.serverapp.strategy", "flower")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    client, server = apps.ClientApp(), serverapp.ServerApp()
    ends: list[float] = []

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        given = message.content["arrays"].to_numpy_ndarrays()
        moved = [shift_weights(value, int(context.node_config["partition-id"])) for value in given]
        content = {"arrays": flower.ArrayRecord(moved), "metrics": flower.MetricRecord({"num-examples": 1})}
        return flower.Message(content=flower.RecordDict(content), reply_to=message)

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        average = strategy.FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        start = flower.ArrayRecord([np.zeros(floats, np.float32)])
        done = average.start(
            grid, start, num_rounds=rounds, evaluate_fn=lambda number, arrays: ends.append(time.perf_counter())
        )
        (found,) = done.arrays.to_numpy_ndarrays()
        step = np.mean([0.01 * (1 + number % 7) for number in range(clients)])
        assert np.allclose(found, rounds * step, rtol=1e-3), "Flower's clients did not do what ours do"

    config = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": WORKERS, "include_dashboard": False}}
    require("flwr.simulation", "flower").run_simulation(server, client, num_supernodes=clients, backend_config=config)
    return min(later - earlier for earlier, later in pairwise(ends[1:]))


def time_way(way: str, clients: int, floats: int, rounds: int) -> float:
    """Seconds of a round by the wall, in one of the three ways."""
    if way == "flower":
        return time_strategy(clients, floats, rounds)
    with disable_fsync():
        return time_round(IdleAlgorithm(clients, floats), rounds, workers=WORKERS, backend=way)[1]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"seconds": time_way(sys.argv[1], *map(int, sys.argv[2:5]))}) + "\n")
