"""One run seen from outside: reads its output, waits for its end, and removes what is left."""

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
    """Watches one child; `abandoned` is called when the process that ordered the run is gone."""

    def __init__(
        self,
        control: socket.socket,
        pid: int,
        streams: dict[int, str],
        run: dict[str, Any],
        children: Children,
        abandoned: Callable[[], None],
    ) -> None:
        self.control, self.pid, self.run, self.children, self.abandoned = control, pid, run, children, abandoned
        self.streams, self.caught = streams, {name: bytearray() for name in streams.values()}
        self.deadline = time.monotonic() + run["seconds"]
        self.code = 0

    def until_over(self) -> dict[str, Any]:
        """Watch until the child has ended or has to be ended."""
        status = self._wait()
        self._kill_all()
        if status == "abandoned":
            self.abandoned()
        if status == "ended" and self.code < 0:
            status = "killed by a signal"
        self._drain()
        texts = {name: bytes(caught).decode("utf-8", "replace") for name, caught in self.caught.items()}
        return {"status": status, "code": self.code, **texts}

    def _wait(self) -> str:
        poll = select.poll()
        for stream in self.streams:
            poll.register(stream, select.POLLIN)
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
                    if not self._read(ready):
                        poll.unregister(ready)
                if max(map(len, self.caught.values())) > self.run["output"]:
                    return "too much output"
                if ended < 0 and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    return "ended"
        finally:
            if ended >= 0:
                os.close(ended)

    def _read(self, stream: int) -> bool:
        data = os.read(stream, 65536)
        self.caught[self.streams[stream]] += data
        return bool(data)

    def _drain(self) -> None:
        for stream, name in self.streams.items():
            os.set_blocking(stream, False)
            try:
                while len(self.caught[name]) <= self.run["output"] and self._read(stream):
                    pass
            except BlockingIOError:
                pass
            os.close(stream)

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
