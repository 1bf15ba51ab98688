"""Operations of clients, requests and replies, and `perform`, the function by which every backend serves a request.

An operation is a function of (state, message, context): it keeps nothing between calls, so it can be repeated, moved to another
worker, or run again after a crash with the same result. An `Application` is the set of operations of one run together with
their resources; a worker process builds it from an `ApplicationSpec` of plain values.

A request names the state from which it starts, (round, call); the reply carries the new state, whose name is the request's own
(round, call). Requests and replies are canonical encodings, with the same bytes on every backend.

Headers come from another process, and in a deployment from another owner's machine, so they are validated: a number out of range
or a value of another type makes the whole header malformed, and text in them is cut and made printable.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np

from fedagentgym.base.blame import find_blame
from fedagentgym.base.devices import here
from fedagentgym.base.encoding import MAX_BITS, Pieces, bytes_digest, encode, join_pieces
from fedagentgym.base.errors import DataError, ProcessUnusableError, show_value
from fedagentgym.base.imports import load_plugins, resolve
from fedagentgym.base.process import work_for_client
from fedagentgym.base.rounding import format_fixed
from fedagentgym.base.streams import Stream, derive, generator, stream
from fedagentgym.base.together import own_time
from fedagentgym.federation.message import Form, Message

EMPTY_STATE = Message()
R = TypeVar("R")
"""The resources that an application provides to each of its clients."""


@dataclass(frozen=True)
class ClientContext(Generic[R]):
    """The client as an operation sees it. All of it can be rebuilt at any time.

    `resources` is what the application provides: the client's tasks, environment and agent. Random streams are named
    by a purpose and follow from (run seed, round, client, purpose) alone, so an operation that runs several times in a
    round includes the step in the purpose.
    """

    id: int
    round: int
    seed: int
    stream_id: int
    resources: R

    def derive(self, *purpose: int | str) -> int:
        """A child seed for this client, round and purpose."""
        return derive(self.seed, "client", self.round, self.stream_id, *purpose)

    def stream(self, *purpose: int | str) -> Stream:
        return stream(self.seed, "client", self.round, self.stream_id, *purpose)

    def generator(self, *purpose: int | str) -> np.random.Generator:
        return generator(self.seed, "client", self.round, self.stream_id, *purpose)


@dataclass(frozen=True)
class Operation(Generic[R]):
    """One operation of clients, which the server calls by name.

    Attributes:
        run: A function `(state, message, client)` that returns the client's next state and its reply. It keeps nothing between
            calls; `client` has `id`, `round`, `resources`, and the streams to draw from.
        request: Form of the message.
        reply: Form of the reply.
        state: Form of the client's state.
    """

    run: Callable[[Message, Message, ClientContext[R]], tuple[Message, Message]]
    request: Form
    reply: Form
    state: Form = field(default_factory=Form)


class Application(Protocol[R]):
    """The client side of a run."""

    @property
    def operations(self) -> Mapping[str, Operation[R]]: ...

    def resources(self, client: int) -> R:
        """The resources of client number `client`; may be kept in memory or rebuilt."""


@dataclass(frozen=True)
class ApplicationSpec:
    """The application as a worker builds it: `module:function` called with keyword arguments.

    Within this process, the arguments are passed unchanged. Transports send the `plain` form, and the function validates the
    arguments again where they arrive, since a client's machine must not unpickle what a server sends. `plugins` are modules or
    files of the user, which are loaded first.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    def build(self, device: str | None = None, owner: Mapping[str, Any] | None = None, **held: Any) -> Application[Any]:
        """Build the application. A worker with its own device passes it as `device`; a machine with its own tasks passes them as
        `held`. A node passes the decisions of its `owner`, which are handed on if the application has this argument."""
        load_plugins(self.plugins)
        make = resolve(self.target, "application")
        own = held if device is None else {"device": device, **held}
        if owner is not None and "owner" in signature(make).parameters:
            own = {**own, "owner": owner}
        application: Application[Any] = make(**{**self.arguments, **own})
        return application

    def plain(self) -> dict[str, Any]:
        """The specification as plain values; an argument with a method `to_plain` is replaced by its result."""
        arguments = {
            name: value.to_plain() if hasattr(value, "to_plain") else value for name, value in self.arguments.items()
        }
        return {"target": self.target, "arguments": arguments, "plugins": list(self.plugins)}

    @classmethod
    def load(cls, plain: object) -> ApplicationSpec:
        """Make a specification from plain values; raise a `DataError` if they are malformed."""
        if not isinstance(plain, Mapping):
            raise DataError("malformed recipe: a mapping is expected")
        target, arguments, plugins = (plain.get(name) for name in ("target", "arguments", "plugins"))
        if not isinstance(target, str) or not isinstance(arguments, Mapping):
            raise DataError("malformed recipe: it needs a target and a mapping of arguments")
        if not isinstance(plugins, list | tuple) or not all(isinstance(plugin, str) for plugin in plugins):
            raise DataError("malformed recipe: its plugins must be a list of names")
        return cls(target, arguments, tuple(plugins))


Status = Literal["ok", "error", "timeout", "dead", "refused"]
MAX_ERROR_LENGTH = 500
MAX_DETAIL_LENGTH = 4000
MAX_ROUNDS = 1 << 31
MAX_CLIENTS = 1 << 31
MAX_KEPT = 100_000
_MAX_NAME_LENGTH = 200
_MAX_BYTES = 1 << 62
_MAX_SEEDS = 1 << MAX_BITS
_MAX_CALL_SECONDS = 1e9


class StateName(NamedTuple):
    """The round and the call that made a state."""

    round: int
    call: int

    def __str__(self) -> str:
        return f"{self.round:04d}-{self.call:03d}"


@dataclass(frozen=True)
class Request:
    """The server's request to one client, with the maximum sizes in bytes of the reply's parts.

    In the process that makes it, the message is in pieces. A backend that sends it elsewhere takes `body`; the pieces of a
    broadcast are joined once for all receivers.
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
    kept: tuple[StateName, ...] = ()
    """The client's states that belong to rounds which the server keeps, for a machine that stores its states itself."""

    @property
    def body(self) -> bytes:
        """The joined bytes of the message."""
        return join_pieces(self.message)

    @cached_property
    def digest(self) -> str:
        """The digest of the request, by which a forwarded reply names the request that it answers."""
        return bytes_digest(encode([self.to_header(), bytes_digest(self.body)]))

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
            "kept": [list(name) for name in self.kept],
        }

    @classmethod
    def from_header(cls, header: Any, message: bytes) -> Request:
        """Make the request with this header; raise a `DataError` if a part has a wrong type or is out of range."""
        try:
            base, (reply_limit, state_limit) = header["base"], header["limits"]
            name, started = _read_name(header["name"]), None if base is None else _read_name(base)
            if started is not None and started >= name:
                raise ValueError(f"the call {name} cannot start from the state of {started}")
            operation, kept = header["operation"], header["kept"]
            if not isinstance(kept, list | tuple) or len(kept) > MAX_KEPT:
                raise ValueError(f"{ascii(kept)[:40]} in place of the states that are kept")
            if not isinstance(operation, str) or len(operation) > _MAX_NAME_LENGTH:
                raise ValueError(f"{ascii(operation)[:40]} in place of a name")
            return cls(
                _read_number(header["client"], MAX_CLIENTS),
                name,
                operation,
                message,
                started,
                _read_number(header["seed"], _MAX_SEEDS),
                _read_number(header["stream"], MAX_CLIENTS),
                _read_number(reply_limit, _MAX_BYTES),
                _read_number(state_limit, _MAX_BYTES),
                tuple(map(_read_name, kept)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"malformed request: {clean_text(error, 200)}") from None


@dataclass(frozen=True)
class Reply:
    """The reply to one request. `state` is None if the call did not change the client's state."""

    client: int
    status: Status
    message: bytes | Pieces = b""
    state: bytes | None = None
    error: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def body(self) -> bytes:
        """The joined bytes of the reply, for backends that send it elsewhere."""
        return join_pieces(self.message)

    def to_header(self) -> dict[str, Any]:
        """Everything but the message and the state, as plain values."""
        return {"status": self.status, "error": self.error, "detail": self.detail, "seconds": self.seconds}

    @classmethod
    def from_header(cls, client: int, header: Any, message: bytes, state: bytes | None) -> Reply:
        """Make the reply with this header; raise a `DataError` if a part has a wrong type or is out of range."""
        try:
            status, seconds = header["status"], header["seconds"]
            if status not in get_args(Status):
                raise ValueError("an unknown status")
            if type(seconds) not in (int, float) or not (
                math.isfinite(seconds) and 0.0 <= seconds <= _MAX_CALL_SECONDS
            ):
                raise ValueError("an impossible number of seconds")
            error, detail = header["error"], header["detail"]
            if not isinstance(error, str) or not isinstance(detail, str):
                raise TypeError("an error that is no text")
        except (KeyError, TypeError, ValueError) as fault:
            raise DataError(f"malformed reply: {clean_text(fault, 200)}") from None
        cut = clean_text(error, MAX_ERROR_LENGTH), clean_text(detail, MAX_DETAIL_LENGTH, lines=True)
        if status != "ok":
            message, state = b"", None
        return cls(client, status, message, state, *cut, float(seconds))


def perform(application: Application[Any], request: Request, data: bytes | None) -> Reply:
    """Run the requested operation on the state encoded in `data`. An exception becomes an `error` reply; the state is unchanged.

    An error after which this process cannot compute (`ProcessUnusableError`) is raised, since it is no fault of the client.
    """
    started = own_time()
    try:
        operation = application.operations.get(request.operation)
        if operation is None:
            raise DataError(f"unknown operation {request.operation!r}")
        state = EMPTY_STATE if data is None else Message.decode(data, operation.state)
        message = Message.decode(request.message, operation.request)
        context = ClientContext(
            request.client, request.name.round, request.seed, request.stream_id, application.resources(request.client)
        )
        with work_for_client(request.client):
            returned: object = operation.run(state, message, context)
        match returned:
            case (Message() as new_state, Message() as answer):
                pass
            case _:
                what = f"the operation {request.operation!r} must return two messages, its state and its answer"
                raise DataError(f"{what}, got {show_value(returned)}")
        kept = None  # a client that never keeps anything has no state on disk
        if new_state is not state and not (new_state.empty and state.empty):
            operation.state.check(new_state, new_state.size)
            kept = new_state.encoded
        return Reply(request.client, "ok", answer.pieces, kept, seconds=own_time() - started)
    except ProcessUnusableError:
        raise
    except Exception as error:
        here().check_alike(error)
        blame = find_blame(error)
        text = clean_text(
            f"{type(error).__name__}: {error}" if blame is None else blame.describe(error), MAX_ERROR_LENGTH
        )
        detail = clean_text(traceback.format_exc()[-MAX_DETAIL_LENGTH:], MAX_DETAIL_LENGTH, lines=True)
        return Reply(request.client, "error", error=text, detail=detail, seconds=own_time() - started)


def apply_deadline(reply: Reply, deadline: float | None) -> Reply:
    """The reply, or a `timeout` reply in its place if it took longer than the deadline."""
    if deadline is None or reply.seconds <= deadline:
        return reply
    error = f"took {format_fixed(reply.seconds, 1)} s, the deadline is {deadline:g} s"
    return replace(reply, status="timeout", message=b"", state=None, error=error)


def clean_text(text: object, longest: int, *, lines: bool = False) -> str:
    """A text from another process, cut to `longest` characters and made printable; line ends stay only with `lines`."""
    shown = str(text)[:longest]
    kept = "\n" if lines else ""
    return "".join(sign if sign.isprintable() or sign in kept else " " for sign in shown)


def _read_number(value: Any, end: int) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"{ascii(value)[:40]} in place of a whole number from 0 to {end - 1}")
    return value


def _read_name(value: Any) -> StateName:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{ascii(value)[:40]} in place of a round and a call")
    return StateName(*(_read_number(part, MAX_ROUNDS) for part in value))
