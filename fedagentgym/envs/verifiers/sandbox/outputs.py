"""What runs write, collected by the process that ordered them, while it talks with their children."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import tempfile
import time
from collections.abc import Sequence

_SIZE = 65536


class Output:
    """The standard output and error of one run: up to `most` bytes of each are read."""

    def __init__(self, most: int) -> None:
        self.most, self.too_much = most, False
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self.ends: tuple[int, ...] = (out_end, err_end)
        self.texts = {out: bytearray(), err: bytearray()}
        self._names = (out, err)
        self.open = {out, err}

    def read(self, descriptor: int) -> None:
        """Read what there is; the run is stopped by closing the reading ends once it is too much."""
        data = os.read(descriptor, _SIZE)
        self.texts[descriptor] += data
        if not data:
            self._close(descriptor)
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

    def close_ends(self) -> None:
        """Close the writing ends here: the run has its own."""
        for descriptor in self.ends:
            os.close(descriptor)
        self.ends = ()

    def close(self) -> None:
        """Stop reading."""
        for descriptor in sorted(self.open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        os.close(descriptor)
        self.open.discard(descriptor)


class Channel:
    """A socket whose other end is a child's or a server's; outputs are read while it waits.

    A program that writes much would otherwise block, and so would whoever waits for its answer.
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
    """A descriptor from which a child reads these bytes; a file without a name that nobody can change."""
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
        descriptor,
        fcntl.F_ADD_SEALS,
        fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL,
    )
    return descriptor
