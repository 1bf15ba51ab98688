"""A federation whose clients do not learn: the cost of its rounds is the federation's own cost.

Every client adds a different number to each weight, as if it had trained. The time of this addition is not counted.
"""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from fedagentgym.algorithms.fedagent import Averaging, FedAgentSettings
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.federation.algorithm import Algorithm, FederationSettings, ServerState
from fedagentgym.federation.backends import BACKENDS, Backend
from fedagentgym.federation.exchange import ApplicationSpec, ClientContext, Operation
from fedagentgym.federation.message import ArrayForm, Form, Message, freeze
from fedagentgym.federation.round import ServerConfig, run_rounds
from fedagentgym.learning.settings import LearningSettings

FLOATS = 1_250_000
"""Weights of 5 MB."""


class IdleAlgorithm(Averaging[FedAgentSettings]):
    """FedAgent whose clients add a number to the weights that they get; with `kept`, their states hold that many models."""

    training_seconds = 0.0

    def __init__(self, clients: int, floats: int = FLOATS, kept: int = 0) -> None:
        self.settings = FedAgentSettings()
        spec, env = SimpleNamespace(sampled_episodes=0), SimpleNamespace(max_turns=1)
        self.runtime = cast(Runtime, SimpleNamespace(spec=spec, env=env, learning=LearningSettings()))
        self.clients, self.floats, self.kept = clients, floats, kept

    def make_operations(self) -> Mapping[str, Operation[Any]]:
        weights = ArrayForm("float32", (self.floats,))
        form = Form({"w": weights}, text=64)
        state = Form({str(number): weights for number in range(self.kept)})
        return {"train": Operation(self.train_client, form, form, state)}

    def client_ids(self) -> range:
        return range(self.clients)

    def resources(self, client: int) -> Any:
        return None

    def initial_state(self) -> ServerState:
        return ServerState(freeze({"w": np.zeros(self.floats, np.float32)}))

    def train_client(self, state: Message, message: Message, client: ClientContext[Any]) -> tuple[Message, Message]:
        started = time.process_time()
        trained = {name: shift_weights(value, client.id) for name, value in message.weights.items()}
        kept = {str(number): shift_weights(message.weights["w"], number) for number in range(self.kept)}
        self.training_seconds += time.process_time() - started
        answer = Message(weights=freeze(trained), control={"examples": 1})
        return (Message(weights=freeze(kept)) if kept else state), answer


def shift_weights(value: np.ndarray[Any, Any], client: int) -> np.ndarray[Any, Any]:
    """A client's new weights, which differ a little from those of the others."""
    return np.asarray(value + np.float32(0.01 * (1 + client % 7)))


def build(clients: int, floats: int, kept: int = 0) -> IdleAlgorithm:
    """The algorithm, as worker processes build it."""
    return IdleAlgorithm(clients, floats, kept)


def time_copy_and_hash(nbytes: int, pieces: int) -> float:
    """The least processor seconds, over several trials, of copying pieces of `nbytes` bytes once and computing their SHA-256."""
    pages = [np.full(nbytes, number % 251, np.uint8) for number in range(min(pieces, 8))]
    target, times = np.empty(nbytes, np.uint8), []
    for _ in range(3):
        started = time.process_time()
        for number in range(pieces):
            np.copyto(target, pages[number % len(pages)])
            hashlib.sha256(pages[number % len(pages)].data).digest()
        times.append(time.process_time() - started)
    return min(times)


class Clock:
    """An observer that times each round by a clock, without the seconds that `idle` counts in the meantime."""

    def __init__(self, clock: Any, idle: Any = lambda: 0.0) -> None:
        self._clock, self._idle = clock, idle
        self.times: list[float] = []

    def begin(self, rounds: int) -> None:
        self._last = self._clock() - self._idle()

    def round_done(self, record: Mapping[str, Any]) -> None:
        now = self._clock() - self._idle()
        self.times.append(now - self._last)
        self._last = now

    @property
    def best(self) -> float:
        """Seconds of the fastest round; the first entry, the preparation, is left out."""
        return min(self.times[1:])


def time_round(
    algorithm: IdleAlgorithm,
    rounds: int,
    *,
    per_round: int | None = None,
    workers: int = 0,
    backend: str = "in-process",
) -> tuple[float, float]:
    """Seconds of a round, commits included: processor time of this process without the clients' training, and wall-clock time.

    If workers train, the first number is the server's alone.
    """
    own = Clock(time.process_time, lambda: algorithm.training_seconds)
    wall = Clock(time.perf_counter)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_idle_backend(algorithm, Path(folder), backend, workers) as opened,
    ):
        settings = FederationSettings(rounds=rounds, clients_per_round=per_round)
        plan = ServerConfig(Path(folder), 0, settings, keep_rounds=1, observers=[own, wall])
        run_rounds(algorithm, opened, plan)
    return own.best, wall.best


def measure_peak_bytes(algorithm: IdleAlgorithm, per_round: int | None = None) -> float:
    """The peak memory of one round in bytes: replies, sums, the model before and after, and anything else."""
    with (
        tempfile.TemporaryDirectory() as folder,
        disable_fsync(),
        open_idle_backend(algorithm, Path(folder)) as opened,
    ):
        run = [
            ServerConfig(Path(folder), 0, FederationSettings(rounds=count, clients_per_round=per_round))
            for count in (0, 1)
        ]
        run_rounds(algorithm, opened, run[0])
        gc.collect()
        tracemalloc.start()
        run_rounds(algorithm, opened, run[1])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return float(peak)


@contextmanager
def open_idle_backend(
    algorithm: IdleAlgorithm, folder: Path, name: str = "in-process", workers: int = 0
) -> Iterator[Backend]:
    """A backend for the idle clients, which is closed at the end."""
    arguments = {"clients": algorithm.clients, "floats": algorithm.floats, "kept": algorithm.kept}
    application: Algorithm[Any] = algorithm
    backend: Backend = BACKENDS.get(name)(
        ApplicationSpec(f"{__name__}:build", arguments),
        folder=folder / "states",
        workers=workers,
        application=application,
    )
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def disable_fsync() -> Iterator[None]:
    """Skip waiting for the disk (fsync) during a measurement; ordinary runs do not skip it."""
    real = os.fsync
    os.fsync = lambda fd: None
    try:
        yield
    finally:
        os.fsync = real
