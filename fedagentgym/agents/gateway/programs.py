"""The processes of a program that plays: started, watched, restarted when they end, and always ended with this process."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedagentgym.agents.settings import HarnessSettings
from fedagentgym.base import keeper
from fedagentgym.base.errors import OptionError
from fedagentgym.base.escape import escape_terminal

INHERITED = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")
MAX_FRUITLESS_ENDS = 3
"""If this many processes in a row end without having asked for an episode, the command is refused."""
FIRST_REQUEST_SECONDS = 300.0
"""The time within which a process must ask for the first episode; on a busy machine imports alone may take a minute."""
_MAX_KEPT, _SHOWN_LINES = 1 << 20, 20
_GRACE_SECONDS = 2.0
"""The time that processes have to end by themselves after they are told that the run is over."""


@dataclass(eq=False)
class Program:
    """One process of the command. `key` is its run key, which identifies its requests; no other process has the same."""

    worker: int
    key: str
    process: subprocess.Popen[bytes]
    lifeline: int
    started: float = field(default_factory=time.monotonic)
    asked: bool = False
    said: deque[bytes] = field(default_factory=deque)
    reader: threading.Thread | None = None

    def end(self) -> None:
        """Kill the process and all processes that it has started."""
        with contextlib.suppress(OSError):
            os.close(self.lifeline)
        self.process.wait()
        if self.reader is not None:
            self.reader.join(1.0)

    def read_tail(self) -> str:
        """Return the last lines of output."""
        lines = b"".join(self.said).decode("utf-8", "replace").splitlines()[-_SHOWN_LINES:]
        return "\n".join(f"  {escape_terminal(line)}" for line in lines)


class Programs:
    """All processes of a command. Not thread-safe."""

    def __init__(self, settings: HarnessSettings) -> None:
        self._settings = settings
        self._fruitless = 0
        self.running: dict[int, Program] = {}

    def start(self, url: str) -> None:
        """Start the processes that are not running."""
        if self._settings.command:
            for worker in range(self._settings.processes):
                if worker not in self.running:
                    self.running[worker] = self._start_one(worker, url)

    def _start_one(self, worker: int, url: str) -> Program:
        key = secrets.token_hex(16)
        given = {"GATEWAY_URL": url, "GATEWAY_KEY": key, "GATEWAY_WORKER": str(worker)}
        kept = {name: os.environ[name] for name in (*INHERITED, *self._settings.keep) if name in os.environ}
        return start_program(worker, key, self._settings.command, {**kept, **self._settings.env, **given})

    def find(self, key: str) -> Program | None:
        """Return the running process that has this run key, if there is one."""
        return next((one for one in self.running.values() if secrets.compare_digest(one.key, key)), None)

    def collect_ended(self) -> list[int]:
        """Return the workers whose processes have ended since the last call.

        Raises:
            OptionError: If the command does not ask for an episode: `MAX_FRUITLESS_ENDS` processes in a row ended without
                asking, or none has asked within `FIRST_REQUEST_SECONDS`.
        """
        ended = [one for one in self.running.values() if one.process.poll() is not None]
        for one in ended:
            del self.running[one.worker]
            one.end()
            self._fruitless = 0 if one.asked else self._fruitless + 1
            if self._fruitless >= MAX_FRUITLESS_ENDS:
                how = f"ended with status {one.process.returncode} without having asked for an episode"
                raise self._explain(one, f"{how}, {MAX_FRUITLESS_ENDS} times in a row")
        waited = [one for one in self.running.values() if time.monotonic() - one.started > FIRST_REQUEST_SECONDS]
        if waited and not any(one.asked for one in self.running.values()):
            raise self._explain(waited[0], f"has not asked for an episode within {FIRST_REQUEST_SECONDS:g} s")
        return [one.worker for one in ended]

    def _explain(self, program: Program, fault: str) -> OptionError:
        tail = program.read_tail()
        shown = f"; the last lines that it wrote:\n{tail}" if tail else "; it wrote nothing"
        return OptionError(f"agent.harness.command: {self._settings.command[0]} {fault}{shown}")

    def end_all(self, grace: float = _GRACE_SECONDS) -> None:
        """Wait for `grace` seconds until all processes have ended by themselves, and kill the rest."""
        limit = time.monotonic() + grace
        while any(one.process.poll() is None for one in self.running.values()) and time.monotonic() < limit:
            time.sleep(0.01)
        while self.running:
            _, one = self.running.popitem()
            one.end()


def start_program(worker: int, key: str, command: tuple[str, ...], environment: Mapping[str, str]) -> Program:
    """Start a program under a keeper, which ends the program when this process ends. The latest output is kept, up to 1 MiB."""
    inner, lifeline = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(inner), *command],
            pass_fds=(inner,),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(inner)
    program = Program(worker, key, process, lifeline)
    program.reader = threading.Thread(target=_read_output, args=(program,), daemon=True)
    program.reader.start()
    return program


def _read_output(program: Program) -> None:
    assert program.process.stdout is not None
    size = 0
    with program.process.stdout as output:
        while part := output.read1(1 << 16):  # type: ignore[attr-defined]
            program.said.append(part)
            size += len(part)
            while size > _MAX_KEPT and len(program.said) > 1:
                size -= len(program.said.popleft())
