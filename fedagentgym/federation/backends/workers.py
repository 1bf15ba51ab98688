"""A pool of worker processes on this machine, the pipe to each of them, and the program that each of them runs.

Every worker builds the application once and keeps its tasks and models in memory. It serves one request at a time, so that its
death or delay affects one client only. A worker that dies is replaced, and its request is sent once more with the stored state.

The pipe carries frames of bytes, never pickles. The first frame is the application's specification, which is answered when the
application is built. Each request is a header, the state if there is one, and the message; its answer is a header, the message
and the new state. The reader of a frame limits its length, so an oversized answer is refused unread.

A worker runs code whose faults the server's process must survive: a malformed answer is refused, and a worker that stops in the
middle of a frame counts as dead after `STALL_SECONDS`. In both cases only the request's client fails.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import DataError, FedAgentGymError, ProcessUnusableError
from fedagentgym.base.process import (
    ClientActivity,
    end_with_parent,
    get_logger,
    listen,
    log_to_stderr,
    own_process,
    report_progress,
)
from fedagentgym.federation.exchange import (
    MAX_ERROR_LENGTH,
    ApplicationSpec,
    Reply,
    Request,
    apply_deadline,
    clean_text,
    perform,
)
from fedagentgym.federation.states import StateStore

log = get_logger(__name__)
MAX_TRIES = 2
HEADER_LIMIT = 1 << 20
STALL_SECONDS = 30
"""The time for which an incomplete frame may receive no new bytes; it is short, since both ends are on one machine."""
ONE_THREAD_VARIABLES = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
TOLD_EVERY_SECONDS = 0.5
_AHEAD = 8
"""Requests per worker that may be sent before an earlier one is answered; this limits the number of waiting replies."""


@dataclass
class _InFlight:
    """A request that a worker is serving."""

    index: int
    request: Request
    tries: int
    started: float


@dataclass
class _Batch:
    """One running call: waiting requests, requests in flight by worker, and replies that wait for earlier ones."""

    waiting: list[tuple[int, Request, int]]
    replies: dict[int, Reply] = field(default_factory=dict)
    flights: dict[int, _InFlight] = field(default_factory=dict)
    handed_out: int = 0


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
                while batch.handed_out in batch.replies:  # in the order of the requests
                    batch.handed_out += 1
                    yield batch.replies.pop(batch.handed_out - 1)
        except BaseException:
            self.close()
            raise

    def _send(self, batch: _Batch) -> None:
        """Give every idle worker a request, preferably of a client that it has served. Only the next few requests are sent, so
        that no reply waits long for earlier ones."""
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
        if deadline is None:
            return
        for slot, flight in list(batch.flights.items()):
            seconds, worker = time.monotonic() - flight.started, self._workers[slot]
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
        """The worker of this slot, started if there is none. The start takes seconds and is not awaited, so several can start at
        the same time."""
        worker = self._workers[slot]
        if worker is None:
            device = self._devices[slot % len(self._devices)] if self._devices else None
            worker = self._workers[slot] = WorkerProcess(self._recipe, device)
        return worker

    def _discard(self, slot: int) -> None:
        worker, self._workers[slot] = self._workers[slot], None
        self._last_worker = {client: at for client, at in self._last_worker.items() if at != slot}
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        for slot in range(len(self._workers)):
            self._discard(slot)


# ---- the server's end of a pipe ---------------------------------------------------------------------------------------


class WorkerDied(Exception):
    """The worker's process ended or its pipe broke."""


class WorkerError(FedAgentGymError):
    """The worker could not build the application."""


class WorkerProcess:
    """One child process with one compute thread, ready when it has built the application."""

    def __init__(self, recipe: ApplicationSpec, device: str | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **ONE_THREAD_VARIABLES},
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in a terminal reaches only this process, even while the worker imports
            )
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", STALL_SECONDS, 0))
        self.connection: Connection = Connection(ours.detach())
        self._ready = False
        self._put(encode({**recipe.plain(), "device": device, "path": sys.path}))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        if self._ready:
            return
        self.connection.poll(None)
        try:
            hello = decode(self._get(HEADER_LIMIT), limit=HEADER_LIMIT)
        except DataError:
            hello = None
        if isinstance(hello, dict) and isinstance(hello.get("error"), str):
            self.kill()
            raise WorkerError(f"a worker could not start: {clean_text(hello['error'], 2000)}")
        if hello != {"ready": True}:
            raise WorkerDied("it did not report that it is ready")
        self._ready = True

    def send(self, request: Request, state: bytes | None) -> None:
        self._put(encode({**request.to_header(), "has_state": state is not None}))
        if state is not None:
            self._put(state)
        self._put(request.body)

    def receive(self, request: Request) -> Reply | None:
        """The available reply; one that is malformed or longer than the request allows is refused. None if the worker only
        sent a progress report, which is forwarded."""
        try:
            header = decode(self._get(HEADER_LIMIT), limit=HEADER_LIMIT)
            if isinstance(header, dict) and "activity" in header:
                parts = header["activity"]
                if not isinstance(parts, list) or len(parts) != 4 or any(type(p) is not int or p < 0 for p in parts):
                    raise DataError("its progress report is malformed")
                report_progress(ClientActivity(request.client, *parts[1:]))
                return None
            answer = Reply.from_header(request.client, header, b"", None)
            limits = {"answer": request.reply_limit, "state": request.state_limit}
            sizes = {part: header.get(part) for part in limits}
            for part, size in sizes.items():
                if type(size) is not int and not (part == "state" and size is None):
                    raise DataError(f"it does not give the length of its {part}")
                if size is not None and size > limits[part]:
                    error = f"its {part} has {size} bytes, at most {limits[part]} are allowed by the declaration"
                    return Reply(request.client, "refused", error=error, seconds=answer.seconds)
            message = self._get(request.reply_limit)
            state = self._get(request.state_limit) if sizes["state"] is not None else None
            return Reply.from_header(request.client, header, message, state)
        except DataError as error:
            return Reply(request.client, "refused", error=clean_text(f"malformed answer: {error}", MAX_ERROR_LENGTH))

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _put(self, data: bytes) -> None:
        try:
            self.connection.send_bytes(data)
        except OSError as error:
            raise WorkerDied(self._describe_exit(error)) from None

    def _get(self, limit: int) -> bytes:
        try:
            return self.connection.recv_bytes(limit)
        except (EOFError, OSError) as error:
            raise WorkerDied(self._describe_exit(error)) from None

    def _describe_exit(self, error: BaseException) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=1.0)
            return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        return f"its pipe broke: {type(error).__name__}"


# ---- the worker's end, a program --------------------------------------------------------------------------------------


def main(descriptor: int, parent: int) -> None:
    """Build the application once, then serve requests until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
    own_process()
    log_to_stderr()
    pipe: Connection = Connection(descriptor)
    try:
        plain = decode(pipe.recv_bytes())
        sys.path[:] = plain["path"]
        try:
            application = ApplicationSpec.load(plain).build(plain["device"])
        except Exception as error:
            pipe.send_bytes(encode({"error": clean_text(f"{type(error).__name__}: {error}", 2000)}))
            return
        pipe.send_bytes(encode({"ready": True}))
        while True:
            header = decode(pipe.recv_bytes(HEADER_LIMIT))
            data = pipe.recv_bytes() if header["has_state"] else None
            request = Request.from_header(header, pipe.recv_bytes())
            with listen(_Reporter(pipe).report):
                reply = perform(application, request, data)
            sizes = {"answer": len(reply.message), "state": None if reply.state is None else len(reply.state)}
            pipe.send_bytes(encode({**reply.to_header(), **sizes}))
            pipe.send_bytes(reply.body)
            if reply.state is not None:
                pipe.send_bytes(reply.state)
    except (EOFError, OSError):
        return
    except ProcessUnusableError as error:
        sys.exit(f"fedagentgym: a worker ends: {error}")


class _Reporter:
    """Sends progress reports to the server's process, at most one every half a second."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._reported = pipe, -math.inf

    def report(self, activity: ClientActivity) -> None:
        if time.monotonic() - self._reported >= TOLD_EVERY_SECONDS:
            self._reported = time.monotonic()
            self._pipe.send_bytes(encode({"activity": list(astuple(activity))}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
