"""The cost of the federation itself: rounds of idle clients, compared with copying and hashing the same bytes and with Flower.

A round takes processor time of this process alone: the clients' training is left out, and so is the disk's part (fsync).
Bars are ratios to a `memcpy` and a SHA-256 of all bytes that arrive in the round, measured in the same run.
"""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

from fedagentgym.base.measurement import Measurement
from fedagentgym.base.progress import show_progress
from fedagentgym.benchmarks.speed.flower import measure_beside_flower
from fedagentgym.benchmarks.speed.idle import (
    FLOATS,
    IdleAlgorithm,
    disable_fsync,
    measure_peak_bytes,
    open_idle_backend,
    time_copy_and_hash,
    time_round,
)
from fedagentgym.benchmarks.speed.scale import measure_scale
from fedagentgym.federation.server import ServerConfig, run_rounds
from fedagentgym.federation.settings import FederationSettings

CLIENTS = 10
MOST_RATIO = 4
FEW_REPLIES = 20


def run(quick: bool = False, clients: int | None = None) -> list[Measurement]:
    """The cost of a round and the memory of clients; `--clients N`: how both grow."""
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
    """Rounds of 5 MB a client, each compared with copying and hashing what it receives: replies, and states if they are sent."""
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
                Measurement(f"{name}: round over memcpy + sha256", ratio, "times", f"at most {MOST_RATIO}"),
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
