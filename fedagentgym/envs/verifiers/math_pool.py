"""A small pool of math-verify workers: persistent, limited in memory and time, replaced when they die.

The pool belongs to one process. It starts with the first comparison, has one worker per core by default, and may be used
from any number of threads: a thread takes an idle worker, sends one comparison and waits for the answer. The clock starts
when a worker takes the comparison; a worker that overruns is ended by the kernel, and the next comparison gets a fresh one,
forked in milliseconds from a process that has math-verify loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from fedagentgym.base.process import count_usable_cores
from fedagentgym.envs.verifiers.sandbox import messages

STALLED = 60.0
"""Seconds after which a worker that has neither answered nor used up its clock is given up."""


class Outcome(NamedTuple):
    """A worker's answer (equal, different, not readable, timeout, out of memory, too deep, or died) and its processor time."""

    said: str
    seconds: float


class WorkerPool:
    """Compares answers with golds in worker processes."""

    def __init__(self, clock: float = 0.8, memory: int = 512 << 20, workers: int | None = None) -> None:
        self.clock, self.memory = clock, memory
        self.workers = workers or count_usable_cores()
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.workers)
        self._idle: list[socket.socket] = []
        self._control: socket.socket | None = None
        self._parent: subprocess.Popen[bytes] | None = None
        os.register_at_fork(after_in_child=self._forget)

    def compare(self, gold: str, answer: str, seconds: float | None = None, *, whole: bool = False) -> Outcome:
        """Compare in an idle worker. No text makes this raise or take more processor time than the clock. With `whole`, the
        answer is a whole reply, in which the library itself looks for the answer."""
        limit = self.clock if seconds is None else min(self.clock, max(seconds, 0.02))
        message = json.dumps([gold, answer, limit, whole]).encode("ascii")
        with self._slots:
            worker, fresh = self._deliver(message)
            started = time.monotonic()
            try:
                said, spent, retiring = json.loads(messages.receive(worker))
            except (OSError, EOFError, messages.FrameError):
                worker.close()
                late = fresh or time.monotonic() - started >= 0.9 * limit
                return Outcome("timeout" if late else "died", limit)
            with self._lock:
                if retiring or self._control is None:
                    worker.close()
                else:
                    self._idle.append(worker)
            return Outcome(str(said), float(spent))

    def close(self) -> None:
        """End every worker and the process they are forked from."""
        with self._lock:
            for worker in self._idle:
                worker.close()
            self._idle.clear()
            control, parent, self._control, self._parent = self._control, self._parent, None, None
        if control is not None and parent is not None:
            control.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                parent.wait(timeout=5)
            parent.kill()
            parent.wait()

    def _forget(self) -> None:
        """Forget the parent's workers in a forked process, which starts its own at its first comparison."""
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.workers)
        self._idle, self._control, self._parent = [], None, None

    def _deliver(self, message: bytes) -> tuple[socket.socket, bool]:
        """Send the comparison to an idle worker that is alive, or to a new one; True if it is new."""
        while True:
            with self._lock:
                fresh = not self._idle
                worker = self._spawn() if fresh else self._idle.pop()
            try:
                worker.settimeout(STALLED)
                messages.send(worker, message)
                return worker, fresh
            except OSError:
                worker.close()
                if fresh:
                    raise

    def _spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            for _ in range(2):
                control = self._control or self._start_parent()
                try:
                    socket.send_fds(control, [b"+"], [theirs.fileno()])
                    return ours
                except OSError:
                    control.close()
                    self._control = None
        finally:
            theirs.close()
        raise OSError("the math workers cannot be started")

    def _start_parent(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        script = str(Path(__file__).with_name("math_worker.py"))
        self._parent = subprocess.Popen(
            [sys.executable, "-I", script],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        setup = json.dumps({"path": sys.path, "memory": self.memory}).encode("ascii")
        messages.send(ours, setup)
        self._control = ours
        return ours
