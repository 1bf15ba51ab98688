"""What the federation itself costs: a round of no-op training with 5 MB of weights and 10 clients, and idle clients."""

from __future__ import annotations

import os
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedagentgym.algorithms.averaging import Averaging
from fedagentgym.algorithms.fedagent import FedAgentSettings
from fedagentgym.base.measurement import Measurement
from fedagentgym.federation.backends.in_process import SequentialBackend
from fedagentgym.federation.message import ArrayForm, Form, Message, freeze
from fedagentgym.federation.operation import ClientContext, Operation
from fedagentgym.federation.server import ServerConfig, run_rounds
from fedagentgym.federation.server_state import ServerState
from fedagentgym.federation.settings import FederationSettings
from fedagentgym.federation.states import StateStore

FLOATS = 1_250_000


class IdleAlgorithm(Averaging[FedAgentSettings]):
    """FedAgent whose clients send back a copy of what they were given, as if trained; making it is their own time."""

    training_seconds = 0.0

    def __init__(self, clients: int, floats: int = FLOATS) -> None:
        self.settings = FedAgentSettings()
        self.clients, self.floats = clients, floats

    def make_operations(self) -> Mapping[str, Operation[Any]]:
        form = Form({"weights/w": ArrayForm("float32", (self.floats,))}, text=64)
        return {"train": Operation(self.train, form, form)}

    def client_ids(self) -> range:
        return range(self.clients)

    def resources(self, client: int) -> Any:
        return None

    def initial_state(self) -> ServerState:
        return ServerState({"w": np.zeros(self.floats, np.float32)})

    def train(self, state: Message, message: Message, client: ClientContext[Any]) -> tuple[Message, Message]:
        started = time.process_time()
        trained = {name: np.array(value) for name, value in message.weights.items()}
        self.training_seconds += time.process_time() - started
        return state, Message(weights=freeze(trained), control={"examples": 1})


def run(quick: bool = False) -> list[Measurement]:
    """Milliseconds of a round without the disk's part, and bytes of memory per idle client."""
    rounds, replies = (5, 100) if quick else (20, 1000)
    with disable_fsync():
        seconds = _measure_round(IdleAlgorithm(10), rounds)
    return [
        Measurement("round with 10 clients and 5 MB, fsync apart", 1000 * seconds, "ms", "< 20 on two quiet cores"),
        Measurement("memory of one of 1,000 idle clients", _measure_idle_bytes() / 1e3, "kB", "< 1000"),
        Measurement(
            f"greatest memory of a round that averages {replies:,} replies of 5 MB",
            _averaging_bytes(replies) / 1e6,
            "MB",
            f"< {20 * 4 * FLOATS / 1e6:.0f}, which is 20 of them",
        ),
    ]


def _measure_round(algorithm: IdleAlgorithm, rounds: int) -> float:
    """Processor time of the fastest of some rounds, commits included, training not: only the federation's own work."""
    times: list[float] = []

    class Clock:
        def begin(self, rounds: int) -> None:
            self.last = time.process_time()

        def round_done(self, record: Any) -> None:
            now = time.process_time() - algorithm.training_seconds
            times.append(now - self.last)
            self.last = now

    with tempfile.TemporaryDirectory() as folder:
        backend = SequentialBackend(algorithm, StateStore(Path(folder) / "states"))
        settings = FederationSettings(rounds=rounds)
        run_rounds(algorithm, backend, ServerConfig(Path(folder), 0, settings, keep_rounds=1, observers=[Clock()]))
    return min(times[1:])


def _measure_idle_bytes() -> float:
    with tempfile.TemporaryDirectory() as folder:
        algorithm = IdleAlgorithm(1000, floats=50_000)
        tracemalloc.start()
        backend = SequentialBackend(algorithm, StateStore(Path(folder) / "states"))
        run_rounds(algorithm, backend, ServerConfig(Path(folder), 0, FederationSettings(rounds=2, clients_per_round=5)))
        current, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return current / 1000


def _averaging_bytes(replies: int) -> float:
    """The most that one round holds at a time, whatever it has to do: replies, sums, the model before and after."""
    with tempfile.TemporaryDirectory() as folder, disable_fsync():
        algorithm = IdleAlgorithm(replies)
        backend = SequentialBackend(algorithm, StateStore(Path(folder) / "states"))
        run_rounds(algorithm, backend, ServerConfig(Path(folder), 0, FederationSettings(rounds=0)))
        tracemalloc.start()
        run_rounds(algorithm, backend, ServerConfig(Path(folder), 0, FederationSettings(rounds=1)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return float(peak)


@contextmanager
def disable_fsync() -> Iterator[None]:
    """The disk's part is the disk's: it is left out of the figure, not out of runs."""
    real = os.fsync
    os.fsync = lambda fd: None
    try:
        yield
    finally:
        os.fsync = real
