"""The child of a run: it becomes the program, in one of the modes `script`, `serve` and `grade`.

In `grade` a test calls a program that another child serves. An error of the program arrives as a built-in exception of the
same class. Exceptions by which Python itself ends loops and programs are not passed on, because inside `all(map(...))` they
would end the test's loop, not the program's. They fail the test, even if the test catches them.
"""
# ruff: noqa: PTH123, SIM115

from __future__ import annotations

import atexit
import builtins
import contextlib
import errno
import json
import os
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from fedagentgym.envs.verifiers.sandbox import messages
from fedagentgym.envs.verifiers.sandbox.confine import Prepared, confine, list_names_up

NO_PROCESSES = "programs may not start processes here; use threads"
NO_PROGRAMS = "programs may not start other programs here"

_REFUSED = {
    NO_PROCESSES: (("posix", "fork"), ("posix", "forkpty"), ("_multiprocessing", "SemLock")),
    NO_PROGRAMS: (
        *(("posix", name) for name in ("execv", "execve", "posix_spawn", "posix_spawnp", "system")),
        ("_posixsubprocess", "fork_exec"),
    ),
}


def explain_refusals() -> None:
    """Replace functions that the kernel would refuse by ones that raise a clear error."""
    for sentence, names in _REFUSED.items():
        for module, name in names:
            for holder in (sys.modules.get(module), os if module == "posix" else None):
                if holder is not None and hasattr(holder, name):
                    setattr(holder, name, _make_refusal(sentence))
    subprocess = sys.modules.get("subprocess")
    if subprocess is not None:
        vars(subprocess)["_fork_exec"] = _make_refusal(NO_PROGRAMS)


def _make_refusal(sentence: str) -> object:
    class Refused:
        SEM_VALUE_MAX = 1

        def __new__(cls, *_given: object, **_named: object) -> NoReturn:
            raise PermissionError(errno.EPERM, sentence)

    return Refused


ENDS_LOOPS = (StopIteration, StopAsyncIteration)


class ProgramError(Exception):
    """The program gave an invalid answer, or raised an exception that is not passed on."""


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
    messages.send(channels[1], json.dumps(outcome).encode())
    return 0


class Remote:
    """Calls to the program in the other child, as the test sees them. `failure` fails the test even if the test catches it."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.failure: str | None = None

    def __call__(self, **request: Any) -> Any:
        frame = messages.dumps(request)
        try:
            messages.send(self.channel, frame)
            answer = messages.loads(messages.receive(self.channel), partial(Kept, self))
        except (OSError, EOFError, messages.FrameError, messages.NotPlain) as error:
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
        if isinstance(kind, type) and issubclass(kind, BaseException):
            if issubclass(kind, ENDS_LOOPS) or not issubclass(kind, Exception):
                self.failure = self.failure or f"the program raised {name}"
                return ProgramError(f"{name}: {text}")
            if kind is not AssertionError:
                with contextlib.suppress(TypeError):
                    return kind(f"{name}: {text}")
        return RuntimeError(f"{name}: {text}")

    def function(self, name: str) -> Callable[..., Any]:
        return lambda *given, **named: self(do="call", name=name, args=list(given), named=named)


def text_of(error: BaseException) -> str:
    """The text of an error, or nothing if it cannot be read."""
    try:
        return str(error)[:300]
    except BaseException:
        return ""


class Kept(messages.Handle):
    """An object of the program, in the program's process. A test can pass it back, call it, and read and set its attributes.

    It is equal to itself only, and has neither a truth value nor a length, so that no test passes by accident.
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


REQUESTS = 3
MAX_DESCRIPTORS = 6
"""Maximum number of descriptors of a run: the program, standard input, output and error, and two sockets."""
EXIT_BROKEN = 97
PROGRAM_FILES = ("solution.py", "test.py")
_HIGHEST_DESCRIPTOR = 256


def become(run: dict[str, Any], prepared: Prepared, descriptors: Sequence[int]) -> None:
    """Read the program, take over the other descriptors, confine this process, run the program, and exit. Does not return.

    The descriptors are the program as JSON, standard input, output and error, and the sockets of the mode.
    """
    code = EXIT_BROKEN
    try:
        os.setsid()
        with open(descriptors[0], "rb") as file:
            run |= json.loads(file.read())
        handles = descriptors[4:]
        high = [os.dup2(descriptor, 100 + place) for place, descriptor in enumerate(descriptors[1:])]
        for place, descriptor in enumerate(high):
            os.dup2(descriptor, place)
        os.closerange(len(high), _HIGHEST_DESCRIPTOR)
        os.chdir(run["folder"])
        os.umask(0o077)
        os.environ.clear()
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)
        sys.argv = ["solution.py"]
        sys.modules["random"].seed(0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        channels = [
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, REQUESTS + place) for place in range(len(handles))
        ]
        found = confine(run["folder"], run["seconds"], run["memory"], prepared)
        if missing := set(run["protections"]) - set(list_names_up(found)):
            raise OSError(f"protections that were up before are down now: {', '.join(sorted(missing))}")
        explain_refusals()
        code = MODES[run["mode"]](run, channels)
    except BaseException:
        print_traceback()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            pass
        os._exit(code)


def run_script(run: Mapping[str, Any], _channels: list[socket.socket]) -> int:
    """Run the whole program as the main module, with its threads and the functions that it registered for its end."""
    names = _make_module("__main__")
    try:
        try:
            exec(compile(run["source"], "solution.py", "exec"), names)
        finally:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
    except SystemExit as end:
        return 0 if end.code is None else end.code & 255 if isinstance(end.code, int) else 1
    except BaseException:
        print_traceback()
        return 1
    return 0


def run_serve(run: Mapping[str, Any], channels: list[socket.socket]) -> int:
    """Serve requests (load the program, call it, read and set attributes) until the other end of the socket closes."""
    channel, kept = channels[0], []  # type: socket.socket, list[Any]

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def resolve(given: Any) -> Any:
        return kept[given.number] if isinstance(given, messages.Handle) else given

    names = _make_module("solution")
    sys.modules["__main__"] = sys.modules["solution"]

    def perform(request: Mapping[str, Any]) -> Any:
        arguments = [resolve(given) for given in request.get("args", ())]
        named = {key: resolve(given) for key, given in request.get("named", {}).items()}
        target = kept[request["of"]] if "of" in request else None
        what, name = request["do"], request.get("name", "")
        if what == "load":
            exec(compile(run["source"], "solution.py", "exec"), names)
            return None
        if what == "call":
            return (names[name] if target is None else target)(*arguments, **named)
        if what == "get":
            return getattr(target, name)
        return setattr(target, name, arguments[0])

    while True:
        try:
            request = messages.loads(messages.receive(channel))
        except EOFError:
            return 0
        try:
            answer = b'{"d": [["value", ' + messages.dumps(perform(request), keep) + b"]]}"
        except messages.NotPlain as error:
            answer = messages.dumps({"error": "NotPlain", "text": str(error)[:200]})
        except BaseException as error:
            answer = messages.dumps({"error": type(error).__name__[:80], "text": text_of(error)})
        messages.send(channel, answer)


MODES = {"script": run_script, "serve": run_serve, "grade": run_grade}


def print_traceback() -> None:
    """Write the traceback of the current error, from the first line of the program on."""
    kind, error, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_code.co_filename not in PROGRAM_FILES:
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(kind, error, trace, limit=8))
    except BaseException:
        text = "an error that cannot be shown\n"
    sys.stderr.write(text[-4000:])


def _make_module(name: str) -> dict[str, Any]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    module.__dict__["__builtins__"] = __builtins__
    return module.__dict__
