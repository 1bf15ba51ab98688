# ruff: noqa: PTH100, PTH101, PTH106, PTH108, PTH118, PTH120, PTH123, SIM115, SIM905
"""A warm interpreter that forks one confined child per program. Run as a script; serves one run at a time.

A run arrives on the socket that is our standard input: a frame of JSON, and with it the sockets that the child may use. We
fork, the child confines itself and runs the program, we watch: the clock, the amount of output, its end, and whether our
own parent is still there. In the end the whole group is killed, orphans too, the folder is removed, and the outcome is
sent. Our own memory never holds what an answer is compared with, so neither does a child's.

Modes: `script` (run a program with its input), `serve` (load a program, then answer calls over a socket), `grade` (run a
test that calls a program served by another child; its verdict goes out over a second socket).
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

HEADER = 4
LOADED_AHEAD = """abc array ast bisect builtins calendar cmath codecs collections collections.abc contextlib copy dataclasses
    datetime decimal difflib enum fractions functools graphlib hashlib heapq inspect io itertools json keyword linecache locale
    math numbers operator pprint queue random re statistics string struct sys textwrap threading time timeit tokenize traceback
    types typing unicodedata uuid""".split()
RPC, VERDICT = 3, 4
EXIT_BROKEN = 97


def _beside(name: str) -> Any:
    """A module of this folder, loaded by its file: the folder itself stays off the path."""
    described = importlib.util.spec_from_file_location(
        name, os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    )
    assert described is not None and described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


confine, plain = _beside("confine"), _beside("plain")


# ---- frames ---------------------------------------------------------------------------------------------------------


def receive(channel: socket.socket) -> bytes:
    """The next frame; EOFError when the other end is gone."""
    size = int.from_bytes(_exactly(channel, HEADER), "big")
    if size > plain.LARGEST_FRAME:
        raise plain.NotPlain("a frame too large")
    return _exactly(channel, size)


def send(channel: socket.socket, frame: bytes) -> None:
    channel.sendall(len(frame).to_bytes(HEADER, "big") + frame)


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# ---- the watcher ----------------------------------------------------------------------------------------------------


class Watch:
    """One run seen from outside: reads its output, waits for its end, and sees to it that nothing is left."""

    def __init__(self, control: socket.socket, pid: int, out: int, err: int, run: dict[str, Any]) -> None:
        self.control, self.pid, self.run = control, pid, run
        self.streams, self.caught = {out: "out", err: "err"}, {"out": bytearray(), "err": bytearray()}
        self.deadline = time.monotonic() + run["seconds"]

    def until_over(self) -> dict[str, Any]:
        """Watch until the child has ended or has to be ended."""
        status = self._wait()
        self._kill_all()
        code = self.code
        if status == "ended" and code < 0:
            status = "killed by a signal"
        self._drain()
        texts = {name: bytes(caught).decode("utf-8", "replace") for name, caught in self.caught.items()}
        return {"status": status, "code": code, **texts}

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
                        self._kill_all()
                        shutil.rmtree(self.run["folder"], ignore_errors=True)
                        os._exit(0)
                    elif ready == ended:
                        return "ended"
                    elif not self._read(ready):
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
        """Kill the group, then whatever was orphaned to us, until nothing is left."""
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                pass
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for _ in range(500):
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    _kill_orphans()
                    time.sleep(0.001)
            except ChildProcessError:
                return


def _kill_orphans() -> None:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:
            for orphan in file.read().split():
                os.kill(int(orphan), signal.SIGKILL)
    except (OSError, ValueError):
        pass


# ---- the child ------------------------------------------------------------------------------------------------------


def child(run: dict[str, Any], handles: list[int], out: int, err: int) -> None:
    """Become the program: take the file descriptors that it may have, confine, run, end."""
    code = EXIT_BROKEN
    try:
        os.setsid()
        given = (
            os.open(run["folder"] + "/.input", os.O_RDONLY)
            if run["mode"] == "script"
            else os.open(os.devnull, os.O_RDONLY)
        )
        high = [os.dup2(descriptor, 100 + place) for place, descriptor in enumerate((given, out, err, *handles))]
        for place, descriptor in enumerate(high):
            os.dup2(descriptor, place)
        os.closerange(len(high), 256)
        if run["mode"] == "script":
            os.unlink(run["folder"] + "/.input")
        os.chdir(run["folder"])
        os.umask(0o077)
        os.environ.clear()
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)
        sys.argv = ["solution.py"]
        sys.modules["random"].seed(0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        confine.confine(run["folder"], run["seconds"], run["memory"], run["other_user"])
        code = {"script": run_script, "serve": run_serve, "grade": run_grade}[run["mode"]](run)
    except BaseException:
        _say_traceback()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            pass
        os._exit(code)


def _module(name: str) -> dict[str, Any]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    module.__dict__["__builtins__"] = __builtins__
    return module.__dict__


def _say_traceback() -> None:
    import traceback

    kind, error, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_code.co_filename not in ("solution.py", "test.py"):
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(kind, error, trace, limit=8))
    except BaseException:
        text = "an error that cannot be shown\n"
    sys.stderr.write(text[-4000:])


def run_script(run: dict[str, Any]) -> int:
    """The whole program as the main module."""
    names = _module("__main__")
    try:
        exec(compile(run["source"], "solution.py", "exec"), names)
    except SystemExit as end:
        return 0 if end.code is None else end.code & 255 if isinstance(end.code, int) else 1
    except BaseException:
        _say_traceback()
        return 1
    return 0


def run_serve(run: dict[str, Any]) -> int:
    """Load the program, then answer calls until nobody asks any more."""
    channel, kept = socket.socket(fileno=RPC), []  # type: tuple[socket.socket, list[Any]]

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    names = _module("solution")
    sys.modules["__main__"] = sys.modules["solution"]

    def perform(request: dict[str, Any]) -> Any:
        arguments = [
            given if not isinstance(given, plain.Handle) else kept[given.number] for given in request.get("args", ())
        ]
        named = {
            key: given if not isinstance(given, plain.Handle) else kept[given.number]
            for key, given in request.get("named", {}).items()
        }
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
            request = plain.loads(receive(channel))
        except EOFError:
            return 0
        try:
            answer = b'{"d": [["value", ' + plain.dumps(perform(request), keep) + b"]]}"
        except plain.NotPlain as error:
            answer = plain.dumps({"error": "NotPlain", "text": str(error)[:200]})
        except BaseException as error:
            answer = plain.dumps({"error": type(error).__name__[:80], "text": _text_of(error)})
        send(channel, answer)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except BaseException:
        return ""


def run_grade(run: dict[str, Any]) -> int:
    """Run a test in which every call of the program goes to the child that serves it."""
    channel, verdict = socket.socket(fileno=RPC), socket.socket(fileno=VERDICT)
    try:
        ask = Remote(channel)
        names = _module("__main__")
        exec(compile(run["setup"], "test.py", "exec"), names)
        for name in run["remote"]:
            names[name] = ask.function(name)
        names["candidate"] = ask.function(run["entry"])
        ask(do="load")
        exec(compile(run["source"], "test.py", "exec"), names)
        if run["check"]:
            names[run["check"]](names["candidate"])
        outcome = {"passed": True, "reason": "passed"}
    except AssertionError as error:
        outcome = {"passed": False, "reason": f"failed {_text_of(error)}".strip()[:200]}
    except BaseException as error:
        outcome = {"passed": False, "reason": f"{type(error).__name__}: {_text_of(error)}"[:200]}
    send(verdict, json.dumps(outcome).encode())
    return 0


class Remote:
    """Calls to the program in the other child, as the test sees them."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    def __call__(self, **request: Any) -> Any:
        send(self.channel, plain.dumps(request))
        answer = plain.loads(receive(self.channel), self.handle)
        if "error" in answer:
            import builtins

            named: Any = getattr(builtins, answer["error"], None)
            known = isinstance(named, type) and issubclass(named, Exception) and named is not AssertionError
            kind = named if known else RuntimeError
            raise kind(f"{answer['error']}: {answer['text']}")
        return answer["value"]

    def function(self, name: str) -> Callable[..., Any]:
        return lambda *given, **named: self(do="call", name=name, args=list(given), named=named)

    def handle(self, number: int, kind: str) -> Any:
        return Kept(self, number, kind)


_Handle: Any = plain.Handle


class Kept(_Handle):  # type: ignore[misc]
    """An object of the program: it can be passed back, called, and have its attributes read and set there."""

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


# ---- the loop -------------------------------------------------------------------------------------------------------


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in LOADED_AHEAD:
        __import__(name)
    confine.adopt_orphans()
    other_user = confine.may_change_user()
    send(control, json.dumps(_trial(other_user)).encode())
    gc.collect()
    gc.freeze()
    while True:
        try:
            head, handles, _, _ = socket.recv_fds(control, HEADER, 4)
            if len(head) < HEADER:
                head += _exactly(control, HEADER - len(head)) if head else b""
            if not head:
                return
            run = json.loads(_exactly(control, int.from_bytes(head, "big")))
        except (EOFError, OSError):
            return
        run["other_user"] = other_user
        send(control, json.dumps(serve_one(control, run, handles)).encode())


def serve_one(control: socket.socket, run: dict[str, Any], handles: list[int]) -> dict[str, Any]:
    """Fork the child of a run and watch it to its end."""
    run["folder"] = folder = tempfile.mkdtemp(prefix="fedagentgym-run-")
    if run["mode"] == "script":
        with open(folder + "/.input", "wb") as file:
            file.write(run.pop("input").encode("utf-8", "surrogateescape"))
    if run["other_user"]:
        os.chown(folder, confine.NOBODY, confine.NOBODY)
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        child(run, handles, out_end, err_end)
    for descriptor in (out_end, err_end, *handles):
        os.close(descriptor)
    outcome = Watch(control, pid, out, err, run).until_over()
    try:
        os.chmod(folder, 0o700)
        shutil.rmtree(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _trial(other_user: bool) -> list[str]:
    """Which walls stand on this system, found out by putting them up in a child."""
    folder = tempfile.mkdtemp(prefix="fedagentgym-trial-")
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(theirs, json.dumps(confine.confine(folder, 5, 256 << 20, other_user)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    told = os.read(ours, 4096)
    os.close(ours)
    os.waitpid(pid, 0)
    os.rmdir(folder)
    standing: list[str] = json.loads(told) if told else []
    return standing


if __name__ == "__main__":
    main()
