"""The child of a run: it becomes the program, in one of the modes `script`, `serve` and `grade`."""
# ruff: noqa: PTH123, SIM115

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from typing import Any

from fedagentgym.envs.verifiers.sandbox import frames, plain
from fedagentgym.envs.verifiers.sandbox.confine import Prepared, confine
from fedagentgym.envs.verifiers.sandbox.protections import list_names_up
from fedagentgym.envs.verifiers.sandbox.refusals import explain_refusals
from fedagentgym.envs.verifiers.sandbox.remote import run_grade, text_of

REQUESTS = 3
MOST_DESCRIPTORS = 6
"""The program, standard input, output and error, and two sockets."""
EXIT_BROKEN = 97
PROGRAM_FILES = ("solution.py", "test.py")
_HIGHEST_DESCRIPTOR = 256


def become(run: dict[str, Any], prepared: Prepared, descriptors: Sequence[int]) -> None:
    """Read the program, take the other descriptors that the run may have, confine, run, end. Does not return.

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
        say_traceback()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            pass
        os._exit(code)


def run_script(run: Mapping[str, Any], _channels: list[socket.socket]) -> int:
    """The whole program as the main module, with its threads and what it registered for its end."""
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
        say_traceback()
        return 1
    return 0


def run_serve(run: Mapping[str, Any], channels: list[socket.socket]) -> int:
    """Load the program, then answer calls until the test ends."""
    channel, kept = channels[0], []  # type: socket.socket, list[Any]

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def resolve(given: Any) -> Any:
        return kept[given.number] if isinstance(given, plain.Handle) else given

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
            request = plain.loads(frames.receive(channel))
        except EOFError:
            return 0
        try:
            answer = b'{"d": [["value", ' + plain.dumps(perform(request), keep) + b"]]}"
        except plain.NotPlain as error:
            answer = plain.dumps({"error": "NotPlain", "text": str(error)[:200]})
        except BaseException as error:
            answer = plain.dumps({"error": type(error).__name__[:80], "text": text_of(error)})
        frames.send(channel, answer)


MODES = {"script": run_script, "serve": run_serve, "grade": run_grade}


def say_traceback() -> None:
    """Write the traceback of the present error, from the first line of the program on."""
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
