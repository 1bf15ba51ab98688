"""Slots in which programs run: each has a warm server for programs and, for test code, another one.

The output of a run is read while its slot waits for answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.errors import FedAgentGymError, OptionError, unknown_name_error
from fedagentgym.base.process import count_usable_cores, get_logger
from fedagentgym.envs.verifiers.sandbox import messages
from fedagentgym.envs.verifiers.sandbox.confine import PURPOSES, REMOVABLE, USER, Protection, list_names_up

_SIZE = 65536


class Output:
    """The standard output and error of one run: up to `most` bytes of each are read."""

    def __init__(self, most: int) -> None:
        self.most, self.too_much = most, False
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self.ends = (out_end, err_end)
        """The ends into which the run writes; they are closed here once it has begun."""
        self.texts = {out: bytearray(), err: bytearray()}
        self._names = (out, err)
        self.open = {out, err}

    def read(self, descriptor: int) -> None:
        """Read the output that is available; if it is too much, close the reading ends, which stops the run."""
        data = os.read(descriptor, _SIZE)
        self.texts[descriptor] += data
        if not data:
            self.close(descriptor)
        elif len(self.texts[descriptor]) > self.most:
            self.too_much = True
            self.close()

    def drain(self) -> tuple[str, str]:
        """Read the rest, after every process of the run has ended; returns output and error as texts."""
        for descriptor in sorted(self.open):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(BlockingIOError):
                while descriptor in self.open and len(self.texts[descriptor]) <= self.most:
                    self.read(descriptor)
        self.close()
        out, err = (bytes(self.texts[name]).decode("utf-8", "replace") for name in self._names)
        return out, err

    def close(self, *descriptors: int) -> None:
        """Stop reading from these descriptors, by default from all."""
        for descriptor in descriptors or sorted(self.open):
            os.close(descriptor)
            self.open.discard(descriptor)


class Channel:
    """A socket whose other end is a child's or a server's; outputs are read while it waits.

    A program that writes much would otherwise block, and so would the process that waits for its answer.
    """

    def __init__(self, channel: socket.socket, outputs: Sequence[Output], deadline: float) -> None:
        self._channel, self._outputs, self.deadline = channel, outputs, deadline
        channel.setblocking(False)

    def recv(self, size: int) -> bytes:
        self._wait(select.POLLIN)
        return self._channel.recv(size)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._wait(select.POLLOUT)
            view = view[self._channel.send(view) :]

    def _wait(self, event: int) -> None:
        """Wait until the socket is ready; TimeoutError after the deadline."""
        while True:
            poll = select.poll()
            poll.register(self._channel, event)
            owners = {descriptor: output for output in self._outputs for descriptor in output.open}
            for descriptor in owners:
                poll.register(descriptor, select.POLLIN)
            found = poll.poll(max(self.deadline - time.monotonic(), 0) * 1000)
            if not found:
                raise TimeoutError("no answer in time")
            ready = {descriptor for descriptor, _ in found}
            if self._channel.fileno() in ready:
                return
            for descriptor in ready:
                if descriptor in owners[descriptor].open:
                    owners[descriptor].read(descriptor)


def open_text(data: bytes) -> int:
    """A descriptor from which a child reads these bytes: a file without a name, and on Linux one that cannot be changed."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            return os.dup(file.fileno())
    descriptor = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(
        descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    )
    return descriptor


STARTUP = 60.0
GRACE = 0.8
_reported: set[str] = set()


class SandboxError(FedAgentGymError):
    """A protection is missing without which no program may run."""


class Ended(NamedTuple):
    """The end of a run: its status, its exit code, and its output. The status is `ended`, `timeout`, `too much output`,
    `killed by a signal`, `lost` (the server gave no answer) or `refused` (the program was not started)."""

    status: str
    code: int
    out: str = ""
    err: str = ""


class Limits(NamedTuple):
    """The resources of a program: seconds of clock, bytes of memory beyond the interpreter's, bytes of output."""

    seconds: float = 5.0
    memory: int = 512 << 20
    output: int = 1 << 20


class Server:
    """One warm server process, started at its first run and again after it died."""

    def __init__(self, left_out: Collection[str] = ()) -> None:
        self.left_out = tuple(left_out)
        self.protections: tuple[Protection, ...] = ()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def examine(self) -> tuple[Protection, ...]:
        """Every protection, up or down; starts the server where none is running."""
        if self._control is None:
            self._launch()
        return self.protections

    def start(
        self, mode: str, program: Mapping[str, Any], limits: Limits, handles: Sequence[socket.socket], given: str = ""
    ) -> Output:
        """Begin a run; `finish` waits for its end. The server sees only mode and limits; the child alone reads the rest."""
        head = {"mode": mode, "seconds": limits.seconds, "memory": limits.memory}
        framed = messages.add_header(json.dumps(head).encode("ascii"))
        output = Output(limits.output)
        texts = [open_text(json.dumps(program).encode("ascii")), open_text(given.encode("utf-8", "surrogateescape"))]
        descriptors = [*texts, *output.ends, *(handle.fileno() for handle in handles)]
        try:
            self._send(framed, descriptors)
        except BaseException:
            output.close()
            raise
        finally:
            for descriptor in (*texts, *output.ends):
                os.close(descriptor)
        return output

    def _send(self, framed: bytes, descriptors: list[int]) -> None:
        """Send a run to the server; a server that is gone is replaced once."""
        for fresh in (False, True):
            control = self._control or self._launch()
            try:
                control.setblocking(True)
                sent = socket.send_fds(control, [framed], descriptors)
                control.sendall(framed[sent:])
                return
            except OSError:
                self.stop()
                if fresh:
                    raise

    def finish(self, output: Output, limits: Limits) -> Ended:
        """The outcome of the present run; a server that does not answer is replaced."""
        assert self._control is not None
        control = Channel(self._control, [output], time.monotonic() + limits.seconds + GRACE)
        try:
            outcome = json.loads(messages.receive(control))
            status, code = str(outcome["status"]), int(outcome["code"])
        except (OSError, EOFError, ValueError, TypeError, KeyError, messages.FrameError):
            self.stop()
            output.close()
            return Ended("lost", -1)
        out, err = output.drain()
        return Ended("too much output" if output.too_much else status, code, out, err)

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
            [sys.executable, "-P", "-s", "-S", "-B", script, *self.left_out],
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
            found = json.loads(messages.receive(ours))
        except (OSError, EOFError, ValueError, messages.FrameError):
            ours.close()
            self.stop()
            raise FedAgentGymError(
                f"the sandbox for programs cannot start: {sys.executable} {script} ended at once"
            ) from None
        self.protections = tuple(Protection(*one) for one in found)
        report_missing(self.protections)
        self._control = ours
        return ours


def report_missing(protections: Collection[Protection]) -> None:
    """Log the protections that are not active, each once per process, with the reason."""
    for one in protections:
        if not one.up and one.name not in _reported:
            _reported.add(one.name)
            get_logger(__name__).warning("the sandbox for programs lacks %s: %s", one.name, one.reason)


class Slot:
    """A server for the program and one for the test that calls it."""

    def __init__(self, left_out: Collection[str] = ()) -> None:
        self.program, self.test = Server(left_out), Server(left_out)

    def script(self, source: str, given: str, limits: Limits) -> Ended:
        """Run a whole program on some input."""
        output = self.program.start("script", {"source": source}, limits, [], given)
        return self.program.finish(output, limits)

    def calls(self, source: str, requests: list[dict[str, Any]], limits: Limits) -> tuple[list[Any], Ended]:
        """Load a program and perform calls in order, until one gets no answer. Answers are plain mappings."""
        ours, theirs = socket.socketpair()
        output = self.program.start("serve", {"source": source}, limits, [theirs])
        theirs.close()
        answers: list[Any] = []
        channel = Channel(ours, [output], time.monotonic() + limits.seconds + GRACE / 2)
        try:
            for request in ({"do": "load"}, *requests):
                messages.send(channel, messages.dumps(request))
                answer = messages.loads(messages.receive(channel))
                if not isinstance(answer, dict) or answer.keys() - {"value", "error", "text"}:
                    raise messages.NotPlain("not an answer")
                answers.append(answer)
                if "error" in answer and request["do"] == "load":
                    break
        except (OSError, EOFError, messages.FrameError, messages.NotPlain) as error:
            answers.append({"error": type(error).__name__, "text": "no answer"})
        ours.close()
        return answers, self.program.finish(output, limits)

    def test_program(self, source: str, test: dict[str, Any], limits: Limits) -> tuple[dict[str, Any] | None, Ended]:
        """Run a test against a program, each in its own child process; that of the program never sees the test."""
        (one, other), (ours, theirs) = socket.socketpair(), socket.socketpair()
        outputs = [self.program.start("serve", {"source": source}, limits, [one])]
        one.close()
        outputs.append(self.test.start("grade", test, limits, [other, theirs]))
        other.close()
        theirs.close()
        channel = Channel(ours, outputs, time.monotonic() + limits.seconds + GRACE / 2)
        verdict: dict[str, Any] | None = None
        with contextlib.suppress(OSError, EOFError, ValueError, messages.FrameError):
            verdict = json.loads(messages.receive(channel))
        ours.close()
        self.test.finish(outputs[1], limits)
        return verdict, self.program.finish(outputs[0], limits)

    def stop(self) -> None:
        self.program.stop()
        self.test.stop()


class Slots:
    """Slots for any number of threads, by default as many as there are usable cores.

    `left_out` names protections that are not activated; tests use it to measure the others.
    """

    def __init__(self, count: int | None = None, left_out: Collection[str] = ()) -> None:
        self.count = count or count_usable_cores()
        self.left_out = tuple(left_out)
        for name in self.left_out:
            if name not in REMOVABLE:
                raise OptionError(f"the protection {name!r} cannot be left out, only {', '.join(REMOVABLE)}")
        self.seen: tuple[Protection, ...] = ()
        self._idle: list[Slot] = []
        self._start_over()
        os.register_at_fork(after_in_child=self._start_over)

    @contextlib.contextmanager
    def one(self, accept: Collection[str] = ()) -> Iterator[Slot]:
        """Use a slot in a `with` block. Raises `SandboxError` if programs would run as root and this was not accepted."""
        with self._free:
            with self._lock:
                slot = self._idle.pop() if self._idle else Slot(self.left_out)
            try:
                self.seen = slot.program.examine()
                refuse_without(self.seen, accept)
                yield slot
            except SandboxError:
                raise
            except BaseException:
                slot.stop()
                raise
            finally:
                with self._lock:
                    self._idle.append(slot)

    def protections(self) -> tuple[Protection, ...]:
        """Every protection on this system, up or down, with the reason."""
        with self.one(accept=REMOVABLE) as slot:
            return slot.program.protections

    def close(self) -> None:
        with self._lock:
            for slot in self._idle:
                slot.stop()
            self._idle.clear()

    def _start_over(self) -> None:
        """Begin without slots; in a forked process, let go of the parent's servers without ending them."""
        for slot in self._idle:
            slot.program.abandon()
            slot.test.abandon()
        self._lock, self._free = threading.Lock(), threading.BoundedSemaphore(self.count)
        self._idle = []


def refuse_without(protections: Collection[Protection], accept: Collection[str]) -> None:
    """Raise `SandboxError` if programs would run as root, because no other user is available, and this was not accepted."""
    administrator = hasattr(os, "geteuid") and os.geteuid() == 0
    for one in protections:
        if administrator and one.name == USER and not one.up and USER not in accept:
            raise SandboxError(
                f"programs would run as root, because the protection '{one.name}' is down: {one.reason}; run as another "
                f"user, or accept it with sandbox: {{accept: [{one.name}]}} (protections that are up: "
                f"{', '.join(list_names_up(protections))})"
            )


def check_accepted(names: object) -> tuple[str, ...]:
    """The names of protections that may be missing; OptionError for an unknown name."""
    if isinstance(names, str) or not isinstance(names, Collection):
        raise OptionError(f"accept must be a list of protections of the sandbox, got {names!r:.80}")
    for name in names:
        if name not in PURPOSES:
            raise unknown_name_error("protection of the sandbox", name, PURPOSES)
    return tuple(names)
