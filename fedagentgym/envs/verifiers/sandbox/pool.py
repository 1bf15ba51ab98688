"""Slots in which programs run: each a warm server for programs and, where a test needs it, another one for the test."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.errors import FedAgentGymError
from fedagentgym.base.logs import get_logger
from fedagentgym.envs.verifiers.sandbox import plain

HEADER = 4
STARTUP = 60.0
GRACE = 0.8
WALLS = ("limits", "no new privileges", "system calls", "file access")
_told = False


class Ended(NamedTuple):
    """How a run ended: `ended`, `timeout`, `too much output`, `killed by a signal` or `lost`; exit code and what it wrote."""

    status: str
    code: int
    out: str = ""
    err: str = ""


class Limits(NamedTuple):
    """What a program may use: seconds of clock, bytes of memory beyond the interpreter's, bytes of output."""

    seconds: float = 5.0
    memory: int = 512 << 20
    output: int = 1 << 20


class Server:
    """One warm server process, started at its first run and again after it died."""

    def __init__(self) -> None:
        self.walls: tuple[str, ...] = ()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, run: dict[str, Any], limits: Limits, handles: list[socket.socket]) -> None:
        """Begin a run; `finish` waits for its end."""
        message = json.dumps({**run, **limits._asdict()}).encode("ascii")
        framed = len(message).to_bytes(HEADER, "big") + message
        for fresh in (False, True):
            control = self._control if self._control is not None else self._launch()
            try:
                sent = socket.send_fds(control, [framed], [handle.fileno() for handle in handles])
                control.sendall(framed[sent:])
                control.settimeout(limits.seconds + GRACE)
                return
            except OSError:
                self.stop()
                if fresh:
                    raise

    def finish(self) -> Ended:
        """The outcome of the run under way; a server that does not answer is replaced."""
        assert self._control is not None
        try:
            size = int.from_bytes(_exactly(self._control, HEADER), "big")
            return Ended(**json.loads(_exactly(self._control, size)))
        except (OSError, EOFError, ValueError, TypeError):
            self.stop()
            return Ended("lost", -1)

    def stop(self) -> None:
        control, process, self._control, self._process = self._control, self._process, None, None
        if control is not None:
            control.close()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            process.kill()
            process.wait()

    def abandon(self) -> None:
        """In a forked process: let go of the parent's server without ending it."""
        self._control = self._process = None

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        script = str(Path(__file__).with_name("server.py"))
        keep = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", script],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0", **keep},
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(STARTUP)
        try:
            standing = json.loads(_exactly(ours, int.from_bytes(_exactly(ours, HEADER), "big")))
        except (OSError, EOFError, ValueError):
            ours.close()
            self.stop()
            raise FedAgentGymError(
                f"the sandbox for programs cannot start: {sys.executable} {script} ended at once"
            ) from None
        self.walls = tuple(standing)
        _tell_once(standing)
        self._control = ours
        return ours


def _tell_once(standing: list[str]) -> None:
    global _told
    missing = [wall for wall in WALLS if wall not in standing]
    if missing and not _told:
        _told = True
        get_logger(__name__).warning("the sandbox for programs lacks on this system: %s", ", ".join(missing))


class Slot:
    """A server for the program and one for the test that calls it."""

    def __init__(self) -> None:
        self.program, self.test = Server(), Server()

    def script(self, source: str, given: str, limits: Limits) -> Ended:
        """Run a whole program on some input."""
        self.program.start({"mode": "script", "source": source, "input": given}, limits, [])
        return self.program.finish()

    def calls(self, source: str, requests: list[dict[str, Any]], limits: Limits) -> tuple[list[Any], Ended]:
        """Load a program and perform calls, one after the other, until one is not answered. Answers are plain mappings."""
        ours, theirs = socket.socketpair()
        self.program.start({"mode": "serve", "source": source}, limits, [theirs])
        theirs.close()
        answers: list[Any] = []
        deadline = time.monotonic() + limits.seconds + GRACE / 2
        try:
            for request in ({"do": "load"}, *requests):
                frame = plain.dumps(request)
                ours.settimeout(max(deadline - time.monotonic(), 0.001))
                ours.sendall(len(frame).to_bytes(HEADER, "big") + frame)
                answer = plain.loads(_frame(ours, deadline))
                if not isinstance(answer, dict) or answer.keys() - {"value", "error", "text"}:
                    raise plain.NotPlain("not an answer")
                answers.append(answer)
                if "error" in answer and request["do"] == "load":
                    break
        except (OSError, EOFError, plain.NotPlain) as error:
            answers.append({"error": type(error).__name__, "text": "no answer"})
        ours.close()
        return answers, self.program.finish()

    def test_program(self, source: str, test: dict[str, Any], limits: Limits) -> tuple[dict[str, Any] | None, Ended]:
        """Run a test against a program, each in its own child; the program's never sees the test."""
        (one, other), (ours, theirs) = socket.socketpair(), socket.socketpair()
        self.program.start({"mode": "serve", "source": source}, limits, [one])
        one.close()
        self.test.start({"mode": "grade", **test}, limits, [other, theirs])
        other.close()
        theirs.close()
        verdict: dict[str, Any] | None = None
        try:
            verdict = json.loads(_frame(ours, time.monotonic() + limits.seconds + GRACE / 2))
        except (OSError, EOFError, ValueError, plain.NotPlain):
            verdict = None
        ours.close()
        self.test.finish()
        return verdict, self.program.finish()

    def stop(self) -> None:
        self.program.stop()
        self.test.stop()


class Slots:
    """As many slots as the machine has cores, for any number of threads."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
        self._start_over()
        os.register_at_fork(after_in_child=self._after_fork)

    @contextlib.contextmanager
    def one(self) -> Iterator[Slot]:
        """A slot of one's own for the length of the block."""
        with self._free:
            with self._lock:
                slot = self._idle.pop() if self._idle else Slot()
            try:
                yield slot
            except BaseException:
                slot.stop()
                raise
            finally:
                with self._lock:
                    self._idle.append(slot)

    def walls(self) -> tuple[str, ...]:
        """Which protections stand on this system."""
        with self.one() as slot:
            if not slot.program.walls:
                slot.script("", "", Limits())
            return slot.program.walls

    def close(self) -> None:
        with self._lock:
            for slot in self._idle:
                slot.stop()
            self._idle.clear()

    def _start_over(self) -> None:
        self._lock, self._free = threading.Lock(), threading.BoundedSemaphore(self.count)
        self._idle: list[Slot] = []

    def _after_fork(self) -> None:
        for slot in self._idle:
            slot.program.abandon()
            slot.test.abandon()
        self._start_over()


def _frame(channel: socket.socket, deadline: float) -> bytes:
    channel.settimeout(max(deadline - time.monotonic(), 0.001))
    size = int.from_bytes(_exactly(channel, HEADER), "big")
    if size > plain.LARGEST_FRAME:
        raise plain.NotPlain("a frame too large")
    return _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
