"""A test that calls a program which another child serves.

What the program raises arrives as an error of the same built-in kind. Kinds by which Python itself ends loops and programs
are not passed on: raised inside `all(map(...))` they would end the test's loop, not the program's. They fail the test for
good, whatever the test makes of them.
"""

from __future__ import annotations

import builtins
import json
import socket
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from fedagentgym.envs.verifiers.sandbox import frames, plain

ENDS_LOOPS = (StopIteration, StopAsyncIteration)


class ProgramError(Exception):
    """Stands for an error of the program that has no equal here."""


def run_grade(run: Mapping[str, Any], channels: list[socket.socket]) -> int:
    """Run a test in which every call of the program goes to the child that serves it; send the verdict."""
    ask = Remote(channels[0])
    try:
        names: dict[str, Any] = types.ModuleType("__main__").__dict__
        names["__builtins__"] = builtins
        exec(compile(run["setup"], "test.py", "exec"), names)
        for name in run["remote"]:
            names[name] = ask.function(name)
        names["candidate"] = ask.function(run["entry"])
        ask(do="load")
        exec(compile(run["source"], "test.py", "exec"), names)
        if run["check"]:
            names[run["check"]](names["candidate"])
        failure = ask.failure
    except AssertionError as error:
        failure = f"failed {text_of(error)}".strip()
    except BaseException as error:
        failure = f"{type(error).__name__}: {text_of(error)}"
    failure = ask.failure or failure
    outcome = {"passed": failure is None, "reason": "passed" if failure is None else failure[:200]}
    frames.send(channels[1], json.dumps(outcome).encode())
    return 0


class Remote:
    """Calls to the program in the other child, as the test sees them. `failure` is an error that no test may catch."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.failure: str | None = None

    def __call__(self, **request: Any) -> Any:
        frame = plain.dumps(request)
        try:
            frames.send(self.channel, frame)
            answer = plain.loads(frames.receive(self.channel), self.handle)
        except (OSError, EOFError, frames.FrameError, plain.NotPlain) as error:
            self.failure = self.failure or f"the program gave no answer ({type(error).__name__})"
            raise
        if not isinstance(answer, dict) or not ({"value"} == set(answer) or {"error", "text"} == set(answer)):
            self.failure = self.failure or "the program gave something that is no answer"
            raise ProgramError(self.failure)
        if "error" in answer:
            raise self.make_error(str(answer["error"]), str(answer["text"]))
        return answer["value"]

    def make_error(self, name: str, text: str) -> Exception:
        """The error that the test sees."""
        kind: object = getattr(builtins, name, None)
        if _ends_loops_or_programs(kind):
            self.failure = self.failure or f"the program raised {name}"
            return ProgramError(f"{name}: {text}")
        if not _is_plain_error(kind):
            return RuntimeError(f"{name}: {text}")
        try:
            return kind(f"{name}: {text}")
        except TypeError:
            return RuntimeError(f"{name}: {text}")

    def function(self, name: str) -> Callable[..., Any]:
        return lambda *given, **named: self(do="call", name=name, args=list(given), named=named)

    def handle(self, number: int, kind: str) -> Any:
        return Kept(self, number, kind)


def _ends_loops_or_programs(kind: object) -> bool:
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return False
    return issubclass(kind, ENDS_LOOPS) or not issubclass(kind, Exception)


def _is_plain_error(kind: object) -> TypeGuard[type[Exception]]:
    return isinstance(kind, type) and issubclass(kind, Exception) and kind is not AssertionError


def text_of(error: BaseException) -> str:
    """The text of an error, or nothing if it cannot be read."""
    try:
        return str(error)[:300]
    except BaseException:
        return ""


class Kept(plain.Handle):
    """An object of the program: it can be passed back, called, and have its attributes read and set there.

    It is equal to itself only, and tells neither its truth nor its length: a test cannot pass by what it is not.
    """

    def __init__(self, ask: Remote, number: int, kind: str) -> None:
        self.__dict__.update(number=number, kind=kind, _ask=ask)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask(do="get", of=self.number, name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask(do="set", of=self.number, name=name, args=[value])

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._ask(do="call", of=self.number, args=list(given), named=named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and other.number == self.number

    def __hash__(self) -> int:
        return int(self.number)

    def __bool__(self) -> bool:
        raise TypeError(f"the program returned {self!r}, which is not plain data")
