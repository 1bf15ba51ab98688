"""One run seen from outside: waits for its end, and removes what is left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

_ATTEMPTS_TO_REAP = 500


class Children:
    """The children of this process by their number, readable even after the process has left `/proc` behind."""

    def __init__(self) -> None:
        me = os.getpid()
        try:
            self._list = os.open(f"/proc/{me}/task/{me}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._list = -1

    def kill(self) -> None:
        """Kill those that there are."""
        try:
            for orphan in os.pread(self._list, 65536, 0).split():
                os.kill(int(orphan), signal.SIGKILL)
        except (OSError, ValueError):
            pass


class Watch:
    """Watches one child; `abandoned` is called when the process that ordered the run is gone.

    `outputs` are the ends into which the child writes. They stay open here, so that a poll tells when their reader closes them:
    it has had more output than it wants, and the run is stopped.
    """

    def __init__(
        self,
        control: socket.socket,
        pid: int,
        outputs: tuple[int, ...],
        seconds: float,
        children: Children,
        abandoned: Callable[[], None],
    ) -> None:
        self.control, self.pid, self.outputs, self.children, self.abandoned = control, pid, outputs, children, abandoned
        self.deadline = time.monotonic() + seconds
        self.code = 0

    def until_over(self) -> dict[str, Any]:
        """Watch until the child has ended or has to be ended."""
        status = self._wait()
        self._kill_all()
        if status == "abandoned":
            self.abandoned()
        if status == "ended" and self.code < 0:
            status = "killed by a signal"
        for output in self.outputs:
            os.close(output)
        return {"status": status, "code": self.code}

    def _wait(self) -> str:
        poll = select.poll()
        for output in self.outputs:
            poll.register(output, 0)  # an error alone is reported: nobody reads
        poll.register(self.control, select.POLLIN)
        ended = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
        if ended >= 0:
            poll.register(ended, select.POLLIN)
        try:
            while True:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    return "timeout"
                for ready, _ in poll.poll(left * 1000 if ended >= 0 else min(left * 1000, 5)):
                    if ready == self.control.fileno():
                        return "abandoned"
                    if ready == ended:
                        return "ended"
                    return "too much output"
                if ended < 0 and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    return "ended"
        finally:
            if ended >= 0:
                os.close(ended)

    def _kill_all(self) -> None:
        """Kill the group, then its orphans, until nothing is left."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for _ in range(_ATTEMPTS_TO_REAP):
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    self.children.kill()
                    time.sleep(0.001)
            except ChildProcessError:
                return
