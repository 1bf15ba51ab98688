"""The default backend: clients one after the other in this process, or in a pool of worker processes.

Both encode and decode every message and state, so bytes and dtypes are those of a real federation, and both give the same
bits. The pool keeps one request per worker in flight, so that a worker's death or delay concerns one client; a worker that
dies is replaced and its request is sent once more from the stored state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import require_type
from fedagentgym.base.process import get_logger
from fedagentgym.federation.backends.process import WorkerDied, WorkerProcess
from fedagentgym.federation.clients import Backend
from fedagentgym.federation.exchange import Application, ApplicationSpec, Reply, Request, apply_deadline, perform
from fedagentgym.federation.states import StateStore

log = get_logger(__name__)
MAX_TRIES = 2
_AHEAD = 8
"""Requests per worker that may be sent before the reply to an earlier one is there; bounds the number of waiting replies."""


def open_backend(
    recipe: ApplicationSpec,
    *,
    folder: Path | None = None,
    workers: int = 0,
    application: Application[Any] | None = None,
    device_per_worker: Sequence[str] = (),
) -> Backend:
    """Open the default backend: clients in this process or in a pool of worker processes, with equal results.

    Args:
        recipe: How a worker builds the client side of the run.
        folder: Where client states are stored; by default in memory.
        workers: Number of worker processes; 0 runs the clients in this process.
        application: The client side, if it is built already; used without workers.
        device_per_worker: Devices that the workers take in turn.

    Returns:
        The backend; close it after use.
    """
    if application is None:
        require_type("a backend is opened with an ApplicationSpec", recipe, ApplicationSpec)
    if workers <= 0:
        return SequentialBackend(application if application is not None else recipe.build(), folder)
    return WorkerPoolBackend(recipe, folder, workers, device_per_worker)


class SequentialBackend(StateStore):
    """Runs one client after the other in this process. A call cannot be interrupted: a late reply is discarded when it comes.

    Args:
        application: The client side of the run: its operations and resources.
        folder: Where client states are stored; by default in memory.
    """

    def __init__(self, application: Application[Any], folder: Path | None = None) -> None:
        super().__init__(folder)
        self._application = application

    def run(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        """Serve requests in order; see `Backend.run`."""
        for request in requests:
            reply = perform(self._application, request, self.get(request.client, request.base))
            reply = apply_deadline(reply, deadline)
            self.put(request.client, request.name, reply.state)
            yield reply

    def close(self) -> None:
        """Release nothing."""


@dataclass
class _InFlight:
    """A request that a worker is serving."""

    index: int
    request: Request
    tries: int
    started: float


@dataclass
class _Batch:
    """One running call: waiting requests, requests in flight, and replies."""

    waiting: list[tuple[int, Request, int]]
    replies: dict[int, Reply] = field(default_factory=dict)
    flights: dict[int, _InFlight] = field(default_factory=dict)
    handed_out: int = 0

    def ready(self) -> Iterator[Reply]:
        """The next replies in the order of the requests."""
        while self.handed_out in self.replies:
            self.handed_out += 1
            yield self.replies.pop(self.handed_out - 1)


class WorkerPoolBackend(StateStore):
    """Worker processes that keep the application (tasks, models) in memory and may be lost at any time."""

    def __init__(self, recipe: ApplicationSpec, folder: Path | None, workers: int, devices: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self._recipe = recipe
        self._devices = list(devices)
        self._workers: list[WorkerProcess | None] = [None] * workers
        self._last_worker: dict[int, int] = {}

    def run(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        batch = _Batch([(i, request, 1) for i, request in enumerate(requests)])
        try:
            for slot in range(min(len(self._workers), len(requests))):
                self._get_worker(slot)
            while batch.waiting or batch.flights:
                self._send(batch)
                self._receive(batch, deadline)
                yield from batch.ready()
        except BaseException:
            self.close()
            raise

    def _send(self, batch: _Batch) -> None:
        """Give every idle worker a request, its own client's if one is near; no reply waits long for earlier ones."""
        last = batch.handed_out + _AHEAD * len(self._workers)
        for slot in range(len(self._workers)):
            near = [k for k, (index, _, _) in enumerate(batch.waiting) if index < last]
            if slot in batch.flights or not near:
                continue
            mine = next((k for k in near if self._last_worker.get(batch.waiting[k][1].client) == slot), near[0])
            index, request, tries = batch.waiting.pop(mine)
            batch.flights[slot] = _InFlight(index, request, tries, time.monotonic())
            try:
                worker = self._get_worker(slot)
                worker.wait_until_ready()
                batch.flights[slot].started = time.monotonic()
                worker.send(request, self.get(request.client, request.base))
                self._last_worker[request.client] = slot
            except WorkerDied as death:
                self._handle_death(batch, slot, str(death))

    def _receive(self, batch: _Batch, deadline: float | None) -> None:
        """Read the available replies; stop workers whose client is late."""
        if not batch.flights:
            return
        busy = {worker.connection: slot for slot in batch.flights if (worker := self._workers[slot]) is not None}
        patience = None
        if deadline is not None:
            patience = max(0.0, min(f.started for f in batch.flights.values()) + deadline - time.monotonic())
        for ready in wait(list(busy), patience):
            slot = busy[ready]  # type: ignore[index]
            worker = self._workers[slot]
            try:
                reply = worker.receive(batch.flights[slot].request) if worker is not None else None
            except WorkerDied as death:
                self._handle_death(batch, slot, str(death))
                continue
            if reply is not None:
                if reply.status == "refused":
                    self._discard(slot)
                self._finish(batch, slot, apply_deadline(reply, deadline))
        if deadline is not None:
            self._stop_late(batch, deadline)

    def _stop_late(self, batch: _Batch, deadline: float) -> None:
        for slot, flight in list(batch.flights.items()):
            seconds = time.monotonic() - flight.started
            worker = self._workers[slot]
            if seconds > deadline and not (worker is not None and worker.connection.poll()):
                self._discard(slot)
                error = f"no answer within {deadline:g} s: its worker was stopped"
                self._finish(batch, slot, Reply(flight.request.client, "timeout", error=error, seconds=seconds))

    def _handle_death(self, batch: _Batch, slot: int, how: str) -> None:
        self._discard(slot)
        flight = batch.flights.pop(slot)
        if flight.tries < MAX_TRIES:
            log.warning("a worker died (%s) while it served client %d: trying once more", how, flight.request.client)
            batch.waiting.insert(0, (flight.index, flight.request, flight.tries + 1))
            return
        seconds = time.monotonic() - flight.started
        error = f"its worker died {flight.tries} times ({how})"
        batch.replies[flight.index] = Reply(flight.request.client, "dead", error=error, seconds=seconds)

    def _finish(self, batch: _Batch, slot: int, reply: Reply) -> None:
        flight = batch.flights.pop(slot)
        self.put(flight.request.client, flight.request.name, reply.state)
        batch.replies[flight.index] = reply

    def _get_worker(self, slot: int) -> WorkerProcess:
        """The worker of this slot; a new one takes seconds to start, and several start at the same time."""
        worker = self._workers[slot]
        if worker is None:
            device = self._devices[slot % len(self._devices)] if self._devices else None
            worker = self._workers[slot] = WorkerProcess(self._recipe, device)
        return worker

    def _discard(self, slot: int) -> None:
        worker = self._workers[slot]
        self._workers[slot] = None
        self._last_worker = {client: at for client, at in self._last_worker.items() if at != slot}
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        for slot, worker in enumerate(self._workers):
            if worker is not None:
                worker.kill()
            self._workers[slot] = None
