"""The cost of the federation itself: rounds of idle clients, compared with copying and hashing the same bytes and with Flower.

The time of a round is the processor time of this process, without the clients' training and without waiting for the disk (fsync).
Limits are ratios to one `memcpy` and one SHA-256 of all bytes that arrive in the round, measured in the same run.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.idle import (
    FLOATS,
    IdleAlgorithm,
    disable_fsync,
    measure_peak_bytes,
    open_idle_backend,
    shift_weights,
    time_copy_and_hash,
    time_round,
)
from benchmarks.measurement import Measurement
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.imports import require
from fedagentgym.base.progress import show_progress
from fedagentgym.federation.algorithm import FederationSettings
from fedagentgym.federation.round import ServerConfig, run_rounds

CLIENTS = 10
MAX_RATIO = 4
FEW_REPLIES = 20


def run(quick: bool = False, clients: int | None = None) -> list[Measurement]:
    """The cost of a round and the memory of clients; with `--clients N`, the cost of rounds in a federation of N clients."""
    if clients is not None:
        return measure_scale(clients, quick)
    rounds, replies = (5, 100) if quick else (20, 1000)
    floats = FLOATS // 10 if quick else FLOATS
    return [
        *_measure_ratios(rounds),
        Measurement("memory of one of 1,000 idle clients", _measure_idle_bytes() / 1e3, "kB", "< 1000"),
        Measurement(
            f"greatest memory of a round that averages {replies:,} replies, over one reply",
            measure_peak_bytes(IdleAlgorithm(replies, floats)) / (4 * floats),
            "times",
            f"< {FEW_REPLIES}",
        ),
        *measure_beside_flower(CLIENTS, floats, 3 if quick else 10),
    ]


def _measure_ratios(rounds: int) -> list[Measurement]:
    """Rounds of 5 MB a client, each compared with copying and hashing the bytes that arrive: replies, and states if any."""
    ways = {
        "in this process": (IdleAlgorithm(CLIENTS), 0),
        "in this process, 10 MB of state a client": (IdleAlgorithm(CLIENTS, kept=2), 0),
        "two worker processes": (IdleAlgorithm(CLIENTS), 2),
    }
    found: list[Measurement] = []
    with disable_fsync(), show_progress("rounds of idle clients", len(ways)) as bar:
        for name, (algorithm, workers) in ways.items():
            arrived = CLIENTS * (1 + algorithm.kept)
            least = time_copy_and_hash(4 * FLOATS, arrived)
            spent, _ = time_round(algorithm, rounds, workers=workers)
            ratio = spent / least
            found += [
                Measurement(f"{CLIENTS} clients, 5 MB, {name}: round", 1000 * spent, "ms"),
                Measurement(f"{name}: memcpy + sha256 of the {5 * arrived} MB that arrive", 1000 * least, "ms"),
                Measurement(f"{name}: round over memcpy + sha256", ratio, "times", f"at most {MAX_RATIO}"),
            ]
            bar.advance()
    return found


def _measure_idle_bytes() -> float:
    """Memory per client of a federation in which few clients are called."""
    with tempfile.TemporaryDirectory() as folder:
        algorithm = IdleAlgorithm(1000, floats=50_000)
        tracemalloc.start()
        with open_idle_backend(algorithm, Path(folder)) as backend:
            settings = FederationSettings(rounds=2, clients_per_round=5)
            run_rounds(algorithm, backend, ServerConfig(Path(folder), 0, settings))
            current, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return current / 1000


# ---- how the cost of a round grows ---------------------------------------------------------------------------------

PARTICIPANTS = (10, 100, 1000)
MODELS = (25_000, 250_000, 2_500_000, 25_000_000)
"""Numbers of weights: 0.1, 1, 10 and 100 MB."""
USUAL = 250_000
FEW = 10
VISIBLE = 20_000
"""The least number of clients whose memory can be told from the temporary buffers of a round."""


def measure_scale(clients: int, quick: bool) -> list[Measurement]:
    """The cost of rounds by the number of participants, by model size, and by the number of clients that are not called."""
    if clients < 1:
        raise OptionError(f"--clients is a number of clients from 1 on, not {clients}")
    usual = USUAL // 10 if quick else USUAL
    models = MODELS[:2] if quick else MODELS
    asked = [count for count in PARTICIPANTS if count <= clients] or [clients]
    few = min(FEW, clients)
    points = [(count, usual) for count in asked] + [(few, floats) for floats in models if floats != usual]
    found: list[Measurement] = []
    with disable_fsync(), show_progress(f"rounds in a federation of {clients:,}", len(points) + 1) as bar:
        for count, floats in points:
            found += _measure_point(clients, count, floats)
            bar.advance()
        found += _measure_population(clients, few)
        bar.advance()
    return found


def _measure_point(clients: int, asked: int, floats: int) -> list[Measurement]:
    """Time and memory of a round that calls some of all clients."""
    nbytes = 4 * floats
    least = time_copy_and_hash(nbytes, asked)
    spent, _ = time_round(IdleAlgorithm(clients, floats), 3, per_round=asked)
    peak = measure_peak_bytes(IdleAlgorithm(clients, floats), asked)
    name = f"{asked:,} of {clients:,} clients, {nbytes / 1e6:g} MB"
    return [
        Measurement(f"{name}: round", 1000 * spent, "ms"),
        Measurement(f"{name}: over memcpy + sha256", spent / least, "times"),
        Measurement(f"{name}: greatest memory", peak / 1e6, "MB"),
    ]


def _measure_population(clients: int, asked: int) -> list[Measurement]:
    """The cost of clients that are not called: a round of tiny messages among all clients, and among the called ones alone."""
    alone, _ = time_round(IdleAlgorithm(asked, 100), 5)
    among, _ = time_round(IdleAlgorithm(clients, 100), 5, per_round=asked)
    found = [
        Measurement(f"{asked} clients of 400 bytes, all asked: round", 1000 * alone, "ms"),
        Measurement(f"{asked} of {clients:,} clients of 400 bytes: round", 1000 * among, "ms"),
    ]
    if clients >= VISIBLE:
        peaks = [measure_peak_bytes(IdleAlgorithm(count, 100), asked) for count in (asked, clients)]
        idle = (peaks[1] - peaks[0]) / (clients - asked)
        found.append(Measurement("memory of a client that is not asked", idle, "bytes"))
    return found


# ---- beside Flower -------------------------------------------------------------------------------------------------

WORKERS = 2
FLOWER_VARIABLES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Settings that turn the telemetry of Flower and Ray off."""


def measure_beside_flower(clients: int, floats: int, rounds: int) -> list[Measurement]:
    """Seconds of a round of Flower's FedAvg on Flower's engine, and of our round on our workers; empty without Flower."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        return []
    seconds = {way: _time_in_process(way, clients, floats, rounds) for way in ("flower", "in-process")}
    size = f"{clients} clients and {4 * floats / 1e6:g} MB, {WORKERS} workers"
    names = {
        "flower": f"Flower's FedAvg on its simulation engine, {size}",
        "in-process": "our round on our own workers",
    }
    found = [Measurement(names[way], 1000 * taken, "ms by the wall") for way, taken in seconds.items()]
    ratio = seconds["flower"] / seconds["in-process"]
    return [*found, Measurement(f"Flower's FedAvg / {names['in-process']}", ratio, "times")]


def _time_in_process(way: str, *numbers: int) -> float:
    command = [sys.executable, "-m", __spec__.name, way, *map(str, numbers)]
    variables = {**os.environ, **FLOWER_VARIABLES, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False, cwd=ROOT)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise DataError(f"the process that timed {way!r} ended without an answer: {done.stderr.strip()[-300:]}")
    return float(json.loads(lines[-1])["seconds"])


def time_strategy(clients: int, floats: int, rounds: int) -> float:
    """Seconds of the fastest round of Flower's own FedAvg; its clients change their weights as our idle clients do."""
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
    """Wall-clock seconds of a round, by Flower or by our workers."""
    if way == "flower":
        return time_strategy(clients, floats, rounds)
    with disable_fsync():
        return time_round(IdleAlgorithm(clients, floats), rounds, workers=WORKERS)[1]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"seconds": time_way(sys.argv[1], *map(int, sys.argv[2:5]))}) + "\n")
