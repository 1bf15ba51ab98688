"""Messages between processes that do not trust each other: frames on a socket, and plain data in them.

A frame is four bytes of length, then the content. Plain data is JSON with marks for types that JSON lacks, never code.
An iterator is sent with its items; any other value becomes a handle that only its own process can use. Sizes are limited
before anything is built, those of hashed containers most of all, so that no answer can make its reader work for long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol

HEADER = 4
MAX_FRAME = 4 << 20


class Socket(Protocol):
    """The methods of a socket that frames need."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


class FrameError(Exception):
    """A frame that is longer than any that we send."""


def receive(channel: Socket, largest: int = MAX_FRAME) -> bytes:
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


MAX_ITEMS = 200_000
MAX_HASHED, COST_OF_OTHER_KEYS = 20_000, 10
_SAFE_INTEGER = 1 << 53


_SEQUENCES: tuple[tuple[Any, str], ...] = ((tuple, "t"), (set, "s"), (frozenset, "z"))
_MAKERS: dict[str, Callable[[Any], Any]] = {"t": tuple, "s": set, "z": frozenset, "n": iter}


class NotPlain(Exception):
    """A value, or a frame, that is not plain data within the limits."""


class Handle:
    """Placeholder of a value that stays in its own process."""

    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind = number, kind

    def __repr__(self) -> str:
        return f"<{self.kind} in the program>"


def dumps(value: Any, keep: Callable[[Any], int] | None = None) -> bytes:
    """The frame of a value; `keep` gives a number to values that are not plain."""
    try:
        return json.dumps(_marked(value, keep, [MAX_ITEMS])).encode("ascii")
    except (RecursionError, ValueError, TypeError) as error:
        raise NotPlain(f"{type(error).__name__}") from None


def loads(frame: bytes, handle: Callable[[int, str], Any] = Handle) -> Any:
    """The value of a frame."""
    try:
        return _restored(json.loads(frame), handle, [MAX_HASHED])
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise NotPlain(f"{type(error).__name__}") from None


def _marked(value: Any, keep: Callable[[Any], int] | None, room: list[int]) -> Any:
    room[0] -= 1
    if room[0] < 0:
        raise NotPlain("too large")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -_SAFE_INTEGER < number < _SAFE_INTEGER else {"i": f"{number:x}"}
    if isinstance(value, float):
        return {"f": float.__repr__(value)}
    if isinstance(value, complex):
        return {"c": [float.__repr__(value.real), float.__repr__(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    if isinstance(value, list):
        return [_marked(item, keep, room) for item in list.__iter__(value)]
    for kind, mark in _SEQUENCES:
        if isinstance(value, kind):
            return {mark: [_marked(item, keep, room) for item in kind.__iter__(value)]}
    if isinstance(value, dict):
        pairs = [[_marked(key, keep, room), _marked(item, keep, room)] for key, item in dict.items(value)]
        return {"d": pairs}
    if isinstance(value, Iterator):
        return {"n": [_marked(item, keep, room) for item in value]}
    if isinstance(value, range):
        return {"g": [_marked(part, keep, room) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, Handle):
        return {"r": [value.number, value.kind]}
    if keep is None:
        raise NotPlain(type(value).__name__[:80])
    return {"r": [keep(value), type(value).__name__[:80]]}


def _restored(tree: Any, handle: Callable[[int, str], Any], room: list[int]) -> Any:
    if isinstance(tree, list):
        return [_restored(item, handle, room) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((mark, inner),) = tree.items()
    if mark == "i":
        return int(inner, 16)
    if mark == "f":
        return float(inner)
    if mark == "c":
        return complex(float(inner[0]), float(inner[1]))
    if mark == "b":
        return bytes.fromhex(inner)
    if mark == "g":
        return range(*(_restored(part, handle, room) for part in inner))
    if mark == "r":
        return handle(int(inner[0]), str(inner[1]))
    if mark in ("s", "z", "d"):
        # keys whose hashes can be made to collide count more, so that too few of them fit to slow the reader down
        keys = [item[0] for item in inner] if mark == "d" else inner
        room[0] -= sum(COST_OF_OTHER_KEYS if isinstance(key, dict | list) else 1 for key in keys)
        if room[0] < 0:
            raise ValueError("too large")
    if mark == "d":
        return {_restored(key, handle, room): _restored(item, handle, room) for key, item in inner}
    return _MAKERS[mark]([_restored(item, handle, room) for item in inner])
