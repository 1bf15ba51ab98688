"""A worker process and the pipe to it.

The pipe carries frames of bytes, never pickles: first the recipe, answered when the application is built; then for each
request a header, the state if there is one, and the message, answered by a header, the message and the new state. The
reader of a frame states the greatest length that it takes, so an oversized answer is refused unread.

A worker runs code that the server's process must outlive: an answer that is none is refused, and one that stops in the middle
of a frame counts as dead after `STALL_SECONDS`. Either costs the client whose request it was.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from multiprocessing.connection import Connection

from fedagentgym.base.activity import ClientActivity, tell
from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.federation.exchange import LONGEST_ERROR, Reply, Request, clean_text
from fedagentgym.federation.operation import ApplicationSpec

Pipe = Connection
HEADER_LIMIT = 1 << 20
STALL_SECONDS = 30
"""How long a frame that has begun may stand still: both ends are on one machine."""
ONE_THREAD_VARIABLES = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


class WorkerDied(Exception):
    """The worker's process ended or its pipe broke."""


class WorkerError(FedAgentGymError):
    """The worker could not build the application."""


class WorkerProcess:
    """One child process with one compute thread, ready when it has built the application."""

    def __init__(self, recipe: ApplicationSpec, device: str | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [
                sys.executable,
                "-m",
                "fedagentgym.federation.backends.worker",
                str(theirs.fileno()),
                str(os.getpid()),
            ]
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **ONE_THREAD_VARIABLES},
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in a terminal goes to us alone, also while the worker still imports
            )
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", STALL_SECONDS, 0))
        self.connection: Pipe = Connection(ours.detach())
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
            raise WorkerDied("it did not say that it is ready")
        self._ready = True

    def send(self, request: Request, state: bytes | None) -> None:
        self._put(encode({**request.to_header(), "has_state": state is not None}))
        if state is not None:
            self._put(state)
        self._put(request.body)

    def receive(self, request: Request) -> Reply | None:
        """The reply that is there; one that is malformed or longer than the request admits is refused. None: the worker has
        only told what it is at, which is passed on."""
        try:
            return self._read_reply(request)
        except DataError as error:
            return Reply(request.client, "refused", error=clean_text(f"malformed answer: {error}", LONGEST_ERROR))

    def _read_reply(self, request: Request) -> Reply | None:
        header = decode(self._get(HEADER_LIMIT), limit=HEADER_LIMIT)
        if isinstance(header, dict) and "activity" in header:
            tell(_read_activity(header["activity"], request.client))
            return None
        told = Reply.from_header(request.client, header, b"", None)
        limits = {"answer": request.reply_limit, "state": request.state_limit}
        sizes = {part: header.get(part) for part in limits}
        for part, size in sizes.items():
            if type(size) is not int and not (part == "state" and size is None):
                raise DataError(f"it does not say how long its {part} is")
            if size is not None and size > limits[part]:
                error = f"its {part} has {size} bytes, at most {limits[part]} are admitted by the declaration"
                return Reply(request.client, "refused", error=error, seconds=told.seconds)
        message = self._get(request.reply_limit)
        state = self._get(request.state_limit) if sizes["state"] is not None else None
        return Reply.from_header(request.client, header, message, state)

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


def _read_activity(told: object, client: int) -> ClientActivity:
    """What a worker says that its client is at."""
    if not isinstance(told, list) or len(told) != 4 or any(type(part) is not int or part < 0 for part in told):
        raise DataError("what it says it is at is no activity")
    return ClientActivity(client, *told[1:])
