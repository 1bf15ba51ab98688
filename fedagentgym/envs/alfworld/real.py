"""The real engine behind one function: its answer after a list of commands in a game.

A state is the game and the commands so far; the engine itself runs in a process of its own (`real_server`), which is
started when first needed and again when it has died. Therefore snapshots, undo and pickling work as with the native engine;
the price is that going back to an earlier state plays the game again from its start.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, MissingExtraError

SERVER = "fedagentgym.envs.alfworld.real_server"


class RealAnswer(NamedTuple):
    """The real engine's answer: text, admissible commands, whether the goal holds, a plan on request; and how
    long the last of the commands (or the start, if there is none) took."""

    feedback: str
    admissible: tuple[str, ...]
    won: bool
    plan: tuple[str, ...] | None
    seconds: float


class RealEngine:
    """A connection to the real engine, opened at the first request."""

    def __init__(self) -> None:
        require_real_engine()
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def play(self, content: Mapping[str, Any], commands: Sequence[str], plan: bool = False) -> RealAnswer:
        """The engine's answer after these commands in a game, given as the content of its file."""
        request = {"key": digest(dict(content)), "commands": list(commands), "plan": plan}
        with self._lock:
            answer = self._ask(request)
            if "missing" in answer:
                answer = self._ask({**request, "game": dict(content)})
        if "error" in answer:
            raise DataError(f"the real engine cannot play this game ({answer['error']}); its goal may be out of reach")
        steps = tuple(answer["plan"]) if plan else None
        return RealAnswer(answer["feedback"], tuple(answer["admissible"]), answer["won"], steps, answer["seconds"])

    def close(self) -> None:
        """End the engine's process; the next request starts another."""
        if self._process is not None:
            _kill_process(self._process)
            self._process = None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        for _ in range(2 if "game" in request else 1):
            try:
                return self._exchange(request)
            except (OSError, ValueError):
                self.close()
        if "game" not in request:
            return {"missing": True}
        raise DataError(
            "the process of the real ALFWorld engine died twice over this game: play it with engine='native'"
        )

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = _launch()
            weakref.finalize(self, _kill_process, self._process)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer


def require_real_engine() -> None:
    """Raise if the extra is missing, before a process is started."""
    if any(importlib.util.find_spec(package) is None for package in ("alfworld", "textworld")):
        raise MissingExtraError(
            "the real ALFWorld engine is not installed: it comes with the extra [alfworld], "
            "pip install 'fedagentgym[alfworld]'; engine='native' plays the same games without it"
        )


def _launch() -> subprocess.Popen[str]:
    # The package makes its data folder when it is imported: it gets a temporary one.
    environment = {
        **os.environ,
        "ALFWORLD_DATA": tempfile.gettempdir(),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env=environment,
        process_group=0,  # Ctrl-C in a terminal must not reach the engine
    )


def _kill_process(process: subprocess.Popen[str]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()
