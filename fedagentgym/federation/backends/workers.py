"""A worker process and the pipe to it.

The pipe carries frames of bytes, never pickles: first the application's specification, answered when the application is built;
then for each request a header, the state if there is one, and the message, answered by a header, the message and the new state.
The reader of a frame limits its length, so an oversized answer is refused unread.

A worker runs code whose faults the server's process must survive: a malformed answer is refused, and a worker that stops in the
middle of a frame counts as dead after `STALL_SECONDS`. In both cases only the request's client fails.
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

from fedagentgym.base.encoding import decode, encode
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.process import ClientActivity, tell
from fedagentgym.federation.exchange import LONGEST_ERROR, ApplicationSpec, Reply, Request, clean_text

Pipe = Connection
HEADER_LIMIT = 1 << 20
STALL_SECONDS = 30
"""The time for which a frame may be incomplete without new bytes: both ends are on one machine."""
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
                process_group=0,  # Ctrl-C in a terminal reaches only this process, even while the worker imports
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
            return self._read_reply(request)
        except DataError as error:
            return Reply(request.client, "refused", error=clean_text(f"malformed answer: {error}", LONGEST_ERROR))

    def _read_reply(self, request: Request) -> Reply | None:
        header = decode(self._get(HEADER_LIMIT), limit=HEADER_LIMIT)
        if isinstance(header, dict) and "activity" in header:
            tell(_read_activity(header["activity"], request.client))
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


def _read_activity(reported: object, client: int) -> ClientActivity:
    """A worker's progress report."""
    if (
        not isinstance(reported, list)
        or len(reported) != 4
        or any(type(part) is not int or part < 0 for part in reported)
    ):
        raise DataError("its progress report is malformed")
    return ClientActivity(client, *reported[1:])
