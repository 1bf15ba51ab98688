"""Requests to other machines, whose answers may be wrong, endless or hostile. Every answer has a total time limit and a limit on
its decompressed size; its JSON is plain and finite. Every failure is one sentence. Servers of this package refuse foreign pages.

The timeout of a socket applies to each read, so a server that sends a byte now and then would block its caller for ever. A
compressed answer of some kilobytes can expand to gigabytes. Here a read waits at most for the rest of the total time, and the
body is decompressed in small parts.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import ipaddress
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from fedagentgym.base.errors import DataError, OptionError, describe_error, show_invisible_characters, show_value
from fedagentgym.base.files import parse_json
from fedagentgym.version import __version__

MAX_ANSWER_BYTES = 1 << 22
"""The largest answer that is read at once, in bytes after decompression; it has room for a reply of a million tokens."""
MAX_VALUES = 200_000
"""Maximum number of commas, colons and brackets in a JSON answer: an empty list of two bytes takes sixty bytes of memory."""
MAX_REDIRECTS = 5
_PART = 1 << 16


class PeerError(DataError):
    """The other machine gives no usable answer."""


class UnreachableError(PeerError):
    """There is no connection to the other machine."""


def check_address(address: str, where: str) -> str:
    """Return a valid http(s) address, or raise an `OptionError`; `where` names the setting that holds the address."""
    if not address.startswith(("http://", "https://")):
        raise OptionError(f"{where}: an http(s) address is expected, got {show_value(address)}")
    try:
        parts = urllib.parse.urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise OptionError(f"{where}: {show_value(address)} is not an address: {error}") from None
    if not host:
        raise OptionError(f"{where}: {show_value(address)} names no host")
    if "@" in parts.netloc:
        raise OptionError(f"{where}: a name or password does not belong in an address")
    if not address.isascii() or any(character <= " " or character == "\x7f" for character in address):
        raise OptionError(f"{where}: {show_value(address)} is not an address: it holds a character that no address has")
    return address


def make_key_headers(variable: str) -> dict[str, str]:
    """The authorization header with the key from an environment variable; empty if the variable is not set."""
    key = os.environ.get(variable, "")
    if not key.isascii() or not key.isprintable():
        raise OptionError(f"the variable {variable} holds a character that no key has")
    return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True)
class _Clock:
    """The time limits of an answer: the total time and the longest pause."""

    seconds: float
    idle: float
    begun: float = field(default_factory=time.monotonic)

    def wait(self) -> float:
        """The longest time that a socket may wait now."""
        left = self.begun + self.seconds - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(left, self.idle)

    @contextmanager
    def wrap_errors(self) -> Iterator[None]:
        """Turn the errors of a connection into a `PeerError` of one sentence."""
        try:
            yield
        except TimeoutError:
            pause = f", or nothing for {self.idle:g} s" if self.idle < self.seconds else ""
            raise PeerError(f"no whole answer within {self.seconds:g} s{pause}") from None
        except (http.client.HTTPException, OSError, zlib.error, ValueError) as error:
            raise PeerError(f"not an answer by HTTP: {show_invisible_characters(describe_error(error))}") from None


class Answer:
    """The status and headers of an answer, and its decompressed body in parts."""

    def __init__(self, response: http.client.HTTPResponse, clock: _Clock) -> None:
        self.status: int = response.status
        self.headers = response.headers
        self._response, self._clock = response, clock

    def read(self, limit: int = MAX_ANSWER_BYTES) -> bytes:
        """The whole body."""
        return b"".join(self.iter_parts(limit))

    def iter_parts(self, limit: int) -> Iterator[bytes]:
        """Yield the body part by part; raise a `PeerError` as soon as it is longer than `limit` bytes."""
        total = 0
        with self._clock.wrap_errors():
            for part in self._unpack():
                total += len(part)
                if total > limit:
                    raise PeerError(f"the answer is longer than the {limit:,} bytes that are read")
                yield part

    def _unpack(self) -> Iterator[bytes]:
        coding = self.headers.get("Content-Encoding", "").strip().lower()
        if coding in ("", "identity"):
            yield from self._receive()
            return
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise PeerError(f"the answer is compressed by {show_value(coding)}, which was not asked for")
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # detects gzip and zlib itself
        for received in self._receive():
            waiting = received
            if unpacker.eof:
                raise PeerError("something follows the end of the packed answer")
            while waiting and not unpacker.eof:
                yield unpacker.decompress(waiting, _PART)
                waiting = unpacker.unconsumed_tail
                self._clock.wait()
            if unpacker.unused_data:
                raise PeerError("something follows the end of the packed answer")
        while tail := unpacker.decompress(unpacker.unconsumed_tail, _PART):
            yield tail
        if not unpacker.eof:
            raise PeerError("the packed answer ends too early")

    def _receive(self) -> Iterator[bytes]:
        while part := self._response.read1(_PART):
            yield part
            self._clock.wait()
        if self._response.length:
            raise PeerError(f"the answer ends {self._response.length:,} bytes too early")


@contextmanager
def open_answer(
    address: str,
    *,
    seconds: float,
    idle: float | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    follow: bool = False,
) -> Iterator[Answer]:
    """Send a request to another machine. The `with` block reads the answer within the same time limits.

    Args:
        address: The address; the usual environment variables may name a proxy.
        seconds: The total time of the connection, the request and the answer.
        idle: The longest pause without data; `seconds` if it is None.
        body: JSON to send by POST; without it, the request is a GET.
        headers: Further headers; they are not sent to the target of a redirect.
        follow: Whether to follow redirects.
    """
    clock = _Clock(seconds, seconds if idle is None else idle)
    request = urllib.request.Request(address, body)
    kind = {} if body is None else {"Content-Type": "application/json"}
    agent = f"fedagentgym/{__version__}"
    for name, value in {"User-Agent": agent, "Accept-Encoding": "gzip", **kind, **(headers or {})}.items():
        request.add_header(name, value)
    # the opener handles neither errors nor redirects, since it would read their bodies without a limit
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), _Handler(clock)):
        opener.add_handler(handler)
    with contextlib.ExitStack() as stack:
        with clock.wrap_errors():
            response = _open(opener, request, clock)
            for _ in range(MAX_REDIRECTS if follow else 0):
                if response.status not in (301, 302, 303, 307, 308):
                    break
                with response:
                    address = urllib.parse.urljoin(address, response.headers.get("Location", ""))
                if not address.startswith(("http://", "https://")):
                    raise PeerError(f"it redirects to {show_value(address)}, which is no http(s) address")
                response = _open(opener, urllib.request.Request(address, headers={"User-Agent": agent}), clock)
            stack.enter_context(response)
        yield Answer(response, clock)


def _open(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, clock: _Clock
) -> http.client.HTTPResponse:
    try:
        found = opener.open(request, timeout=clock.wait())
    except urllib.error.URLError as error:  # while connecting or sending
        reason = error.reason
        if isinstance(reason, TimeoutError | ConnectionResetError | BrokenPipeError):
            raise reason from None
        text = describe_error(reason) if isinstance(reason, BaseException) else str(reason)
        raise UnreachableError(text) from None
    assert isinstance(found, http.client.HTTPResponse)
    return found


def read_json_answer(body: bytes) -> Any:
    """The value of a JSON text that another machine sent, within the limits of `parse_json` and `MAX_VALUES`. A text in it may
    hold a lone surrogate, for example at the end of a model's reply that was cut."""
    if sum(map(body.count, (b",", b":", b"[", b"{"))) > MAX_VALUES:
        raise PeerError(f"the answer holds more than the {MAX_VALUES:,} values that are read")
    return parse_json(body, "the answer", halves=True)


# ---- sockets with a time limit ------------------------------------------------------------------------------------------


class _ClockedReader(io.RawIOBase):
    """A reader of a socket whose reads keep to a clock."""

    def __init__(self, socket: Any, clock: _Clock) -> None:
        self._socket, self._clock = socket, clock
        self._raw: io.RawIOBase = socket.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._clock.wait())
        found = self._raw.readinto(buffer)
        assert found is None or isinstance(found, int)
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()


class _ClockedSocket:
    """A socket with the methods that `http.client` calls, which keep to a clock."""

    def __init__(self, socket: Any, clock: _Clock) -> None:
        self._socket, self._clock = socket, clock

    def makefile(self, mode: str) -> IO[bytes]:
        assert mode == "rb"
        return io.BufferedReader(_ClockedReader(self._socket, self._clock), _PART)

    def sendall(self, data: bytes) -> None:
        for start in range(0, len(data), _PART):
            self._socket.settimeout(self._clock.wait())
            self._socket.sendall(data[start : start + _PART])

    def close(self) -> None:
        self._socket.close()


class _ClockedConnection(http.client.HTTPConnection):
    def __init__(self, host: str, *, clock: _Clock, **options: Any) -> None:
        super().__init__(host, **options)
        self._clock = clock

    def connect(self) -> None:
        super().connect()
        self.sock: Any = _ClockedSocket(self.sock, self._clock)


class _SecureConnection(_ClockedConnection, http.client.HTTPSConnection):
    """A `_ClockedConnection` with TLS."""


@functools.lru_cache(maxsize=1)
def _make_context() -> ssl.SSLContext:
    """The TLS context, made once since reading the system's certificates takes a while."""
    return ssl.create_default_context()


class _Handler(urllib.request.AbstractHTTPHandler):
    """Opens http and https addresses through connections that keep to a clock."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_ClockedConnection, request, clock=self._clock)  # type: ignore[arg-type]

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        context = _make_context()
        return self.do_open(_SecureConnection, request, clock=self._clock, context=context)  # type: ignore[arg-type]

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_


# ---- requests to a server of this package -------------------------------------------------------------------------------

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


class HostCheck:
    """An ASGI middleware that refuses requests of foreign web pages: a browser sends them to servers on its own machine, too.

    A browser names the page that sends a request in `Origin`; it must be a page of this server. A page can also let its own
    host name resolve to this machine. `Host` then holds that name, so only IP addresses, `localhost` and the names of the
    server are admitted in it.

    Args:
        app: The application.
        names: Names of this server; `*` admits any name, except in requests that arrive at the loopback address.
    """

    def __init__(self, app: _App, names: Collection[str] = ()) -> None:
        self.app, self.names = app, frozenset(name.lower() for name in names)

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        fault = self._find_fault(scope) if scope["type"] in ("http", "websocket") else None
        if fault is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": fault})
        else:
            kind = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": kind})
            await send({"type": "http.response.body", "body": f"{fault}\n".encode()})

    def _find_fault(self, scope: _Message) -> str | None:
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == b"host"]
        host = _split_host(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._is_own(host[0], scope.get("server")):
            return "the header Host does not name this server: add the name to make_app(hosts=)"
        for origin in (value for name, value in headers if name == b"origin"):
            scheme, _, rest = origin.partition("://")
            page = _split_host(rest) if scheme in ("http", "https") else None
            if page is None or (page[0] not in self.names and page != host):
                return "web pages of other servers may not send requests: add their names to make_app(hosts=)"
        return None

    def _is_own(self, name: str, server: tuple[str, int | None] | None) -> bool:
        """True if a name may be that of this server; `server` is the address at which the request arrived."""
        if name == "localhost" or name in self.names or _is_address(name):
            return True
        arrived = server[0] if server else "127.0.0.1"
        return "*" in self.names and not (_is_address(arrived) and ipaddress.ip_address(arrived).is_loopback)


@functools.lru_cache(maxsize=64)  # the same few headers come with every request
def _split_host(text: str) -> tuple[str, int | None] | None:
    """The host name and the port in the value of a header; None if it is malformed."""
    try:
        parts = urllib.parse.urlsplit(f"//{text}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (name, port) if name and parts.netloc == text and "@" not in text else None


@functools.lru_cache(maxsize=64)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
