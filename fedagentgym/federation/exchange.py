"""One request to one client, its reply, and the function that every backend runs between them.

A request names the state that it starts from, (round, call); the reply carries the new state, which gets the request's own
(round, call) as its name. The bytes of both are canonical encodings, the same on every backend.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from fedagentgym.base.encoding import Pieces, join_pieces
from fedagentgym.base.errors import DataError
from fedagentgym.federation.message import Message
from fedagentgym.federation.operation import EMPTY_STATE, Application, ClientContext

Status = Literal["ok", "error", "timeout", "dead", "refused"]
_DETAIL = 4000


class StateName(NamedTuple):
    """Which call of which round made a state."""

    round: int
    call: int

    def __str__(self) -> str:
        return f"{self.round:04d}-{self.call:03d}"


@dataclass(frozen=True)
class Request:
    """What the server asks of one client; the limits are the greatest numbers of bytes that it will look at.

    The message is in pieces where the request is made: a backend that carries it elsewhere asks for its bytes, which a
    broadcast puts together once for all receivers.
    """

    client: int
    name: StateName
    operation: str
    message: bytes | Pieces
    base: StateName | None
    seed: int
    stream_id: int
    reply_limit: int
    state_limit: int

    @property
    def body(self) -> bytes:
        """The message in one stretch of bytes."""
        return join_pieces(self.message)

    def to_header(self) -> dict[str, Any]:
        """Everything but the message, as plain values."""
        return {
            "client": self.client,
            "name": list(self.name),
            "operation": self.operation,
            "base": None if self.base is None else list(self.base),
            "seed": self.seed,
            "stream": self.stream_id,
            "limits": [self.reply_limit, self.state_limit],
        }

    @classmethod
    def from_header(cls, header: dict[str, Any], message: bytes) -> Request:
        try:
            base = header["base"]
            return cls(
                int(header["client"]),
                StateName(*map(int, header["name"])),
                str(header["operation"]),
                message,
                None if base is None else StateName(*map(int, base)),
                int(header["seed"]),
                int(header["stream"]),
                *map(int, header["limits"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"malformed request: {error}") from None


@dataclass(frozen=True)
class Reply:
    """Exactly one per request, in request order. `state` is None when the call left the client's state as it was."""

    client: int
    status: Status
    message: bytes | Pieces = b""
    state: bytes | None = None
    error: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def body(self) -> bytes:
        """The answer in one stretch of bytes, for those who carry it elsewhere."""
        return join_pieces(self.message)


def perform(application: Application[Any], request: Request, data: bytes | None) -> Reply:
    """Run the operation on the state with these bytes. What goes wrong inside becomes an `error` reply; the state stays."""
    started = time.monotonic()
    try:
        operation = application.operations.get(request.operation)
        if operation is None:
            raise DataError(f"unknown operation {request.operation!r}")
        state = EMPTY_STATE if data is None else Message.decode(data, operation.state)
        message = Message.decode(request.message, operation.request)
        context = ClientContext(
            request.client, request.name.round, request.seed, request.stream_id, application.resources(request.client)
        )
        new_state, answer = operation.run(state, message, context)
        kept = None
        if new_state is not state and not (new_state.empty and state.empty):
            operation.state.check(new_state, new_state.size)
            kept = new_state.encoded
        return Reply(request.client, "ok", answer.pieces, kept, seconds=time.monotonic() - started)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:500]
        detail = traceback.format_exc()[-_DETAIL:]
        return Reply(request.client, "error", error=text, detail=detail, seconds=time.monotonic() - started)


def apply_deadline(reply: Reply, deadline: float | None) -> Reply:
    """The reply, or a time-out in its place when it took longer than the deadline."""
    if deadline is None or reply.seconds <= deadline:
        return reply
    error = f"took {reply.seconds:.1f} s, the deadline is {deadline:g} s"
    return replace(reply, status="timeout", message=b"", state=None, error=error)
