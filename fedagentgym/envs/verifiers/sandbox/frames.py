"""Frames on a socket: four bytes of length, then the content."""

from __future__ import annotations

from typing import Protocol

HEADER = 4
LARGEST_FRAME = 4 << 20


class Socket(Protocol):
    """What frames need of a socket."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


class FrameError(Exception):
    """A frame that is longer than any that we send."""


def receive(channel: Socket, largest: int = LARGEST_FRAME) -> bytes:
    """The next frame; EOFError when the other end is gone."""
    size = int.from_bytes(receive_exactly(channel, HEADER), "big")
    if size > largest:
        raise FrameError(f"a frame of {size} bytes, {largest} are allowed")
    return receive_exactly(channel, size)


def send(channel: Socket, frame: bytes) -> None:
    channel.sendall(add_header(frame))


def add_header(frame: bytes) -> bytes:
    return len(frame).to_bytes(HEADER, "big") + frame


def receive_exactly(channel: Socket, size: int) -> bytes:
    """Read this many bytes; EOFError if the other end closes before."""
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
