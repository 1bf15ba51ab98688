"""The endpoint agent against servers that are broken, endless or hostile: one sentence each, in bounded time and memory.

The servers that never end are the clock's test: without one the test would not end either.
"""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import pytest

from fedagentgym.agents.players.endpoint import CostCapError, Endpoint, EndpointError, EndpointOptions
from fedagentgym.agents.protocols import Decoding
from fedagentgym.agents.text.prompts import Message
from fedagentgym.base.errors import OptionError

Behaviour = Callable[[], Iterator[bytes]]
MEGABYTE = 1 << 20
MAX_MEMORY = 50 * MEGABYTE
ASKED: list[Message] = [{"role": "user", "content": "a question of some length, " * 10}]


@contextmanager
def serve(behaviour: Behaviour) -> Iterator[str]:
    """The address of a server on this machine that reads a request, sends what the behaviour yields, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(20)
            with connection.makefile("rb") as request:
                lines = iter(request.readline, b"\r\n")
                (size,) = (int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
                request.read(size)  # what is unread when a connection is closed ends it with a reset
            for part in behaviour():
                connection.sendall(part)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def make_endpoint(url: str, **options: Any) -> Endpoint:
    wanted = {"url": url, "timeout": 0.5, "retries": 0, "pause": 0.0, **options}
    return Endpoint("m", EndpointOptions.load(wanted, "agent.options"), Decoding())


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")


def whole(body: bytes, *lines: str, status: str = "200 OK") -> Behaviour:
    return lambda: iter([head(f"Content-Length: {len(body)}", *lines, status=status) + body])


def drip(start: bytes, parts: Iterator[bytes], pause: float = 0.05) -> Behaviour:
    def behave() -> Iterator[bytes]:
        yield start
        for part in parts:
            yield part
            time.sleep(pause)

    return behave


def flood(start: bytes, part: bytes) -> Behaviour:
    return lambda: itertools.chain([start], itertools.repeat(part))


def completion(text: object = "yes", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], **more}


def with_json(text: str) -> Behaviour:
    return whole(text.encode())


@cache
def zip_blanks(megabytes: int, wbits: int) -> bytes:
    packer = zlib.compressobj(9, wbits=wbits)
    return b"".join([*(packer.compress(b" " * MEGABYTE) for _ in range(megabytes)), packer.flush()])


def bomb(wbits: int, *lines: str, pack: Callable[[bytes], bytes] = bytes, **given: str) -> Behaviour:
    """200 MB of blanks, packed when a client first asks for them."""

    def behave() -> Iterator[bytes]:
        yield from whole(pack(zip_blanks(200, wbits)), *lines, **given)()

    return behave


PACKED = gzip.compress(json.dumps(completion()).encode())
GZIP = "Content-Encoding: gzip"
CHUNKED = "Transfer-Encoding: chunked"

LATE = "no whole answer within 0.5 s"
LONG = "the answer is longer than the 4,194,304 bytes that are read"
NO_HTTP = "not an answer by HTTP"
NO_COMPLETION = "not a chat completion"
CASES: dict[str, tuple[Behaviour, str]] = {
    # without an end
    "silence": (drip(b"", itertools.repeat(b"")), LATE),
    "a head that drips": (drip(b"HTTP/1.1 200 OK\r\n", itertools.repeat(b"x")), LATE),
    "a status line that drips": (drip(b"", itertools.repeat(b"H")), LATE),
    "headers for ever": (drip(head()[:-2], itertools.repeat(b"A: b\r\n")), LATE),
    "a body that drips": (drip(head("Content-Length: 1000000"), itertools.repeat(b" ")), LATE),
    "a body without length that drips": (drip(head(), itertools.repeat(b" ")), LATE),
    "chunks that drip": (drip(head(CHUNKED), itertools.repeat(b"1\r\n \r\n")), LATE),
    "the size of a chunk that drips": (drip(head(CHUNKED), itertools.repeat(b"0")), LATE),
    "a packed body that drips": (drip(head(GZIP), (PACKED[i : i + 1] for i in range(len(PACKED)))), LATE),
    "an error that drips": (drip(head(status="500 Oops"), itertools.repeat(b"x")), LATE),
    "continue for ever": (flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), LATE),
    "a body that stops": (drip(head("Content-Length: 10") + b"{", itertools.repeat(b"")), LATE),
    # without a limit
    "blanks for ever": (flood(head(), b" " * 65536), LONG),
    "blanks of a stated length": (flood(head("Content-Length: 600000000"), b" " * 65536), LONG),
    "blanks in chunks": (flood(head(CHUNKED), b"10000\r\n" + b" " * 65536 + b"\r\n"), LONG),
    "an error for ever": (flood(head(status="400 Bad"), b"x" * 65536), LONG),
    "a status line for ever": (flood(b"", b"H" * 65536), NO_HTTP),
    "a header line for ever": (flood(head()[:-2] + b"A: ", b"b" * 65536), NO_HTTP),
    "many header lines": (flood(head()[:-2], b"A: b\r\n" * 1000), NO_HTTP),
    "a gzip bomb": (bomb(31, GZIP), LONG),
    "a gzip bomb as an error": (bomb(31, GZIP, status="429 Busy"), LONG),
    "a deflate bomb": (bomb(15, "Content-Encoding: deflate"), LONG),
    "a bomb in a bomb": (bomb(31, "Content-Encoding: gzip, gzip", pack=gzip.compress), "which was not asked for"),
    # no HTTP
    "nothing": (lambda: iter([]), NO_HTTP),
    "half a head": (lambda: iter([b"HTTP/1."]), NO_HTTP),
    "noise": (lambda: iter([bytes(range(256)) * 8]), NO_HTTP),
    "a mail": (lambda: iter([b"220 mail.test ESMTP\r\n"]), NO_HTTP),
    "a status of letters": (lambda: iter([b"HTTP/1.1 abc OK\r\n\r\n"]), NO_HTTP),
    "a status of many digits": (lambda: iter([b"HTTP/1.1 " + b"2" * 5000 + b"\r\n\r\n"]), NO_HTTP),
    "a bad chunk": (lambda: iter([head(CHUNKED) + b"zz\r\n{}\r\n"]), NO_HTTP),
    "a chunk that ends early": (lambda: iter([head(CHUNKED) + b"ff\r\n{}"]), NO_HTTP),
    "a body that ends early": (lambda: iter([head("Content-Length: 99") + b"{}"]), "ends 97 bytes too early"),
    "a false gzip header": (whole(b"{}" * 10, GZIP), f"{NO_HTTP}: error"),
    "half a gzip": (whole(PACKED[:-12], GZIP), "the packed answer ends too early"),
    "a gzip and more": (whole(PACKED + b"more", GZIP), "something follows the end of the packed answer"),
    "a gzip and more, later": (
        drip(head(GZIP) + PACKED, iter([b"more"])),
        "something follows the end of the packed answer",
    ),
    "an unknown packing": (whole(b"{}", "Content-Encoding: br"), "'br', which was not asked for"),
    "elsewhere": (whole(b"", "Location: http://127.0.0.1:9/", status="302 Found"), "status 302"),
    # no completion
    "an empty answer": (whole(b""), NO_COMPLETION),
    "no JSON": (with_json("<html>"), f"{NO_COMPLETION}: '<html>'"),
    "bytes that are no text": (whole(b'{"choices": "\xff\xfe"}'), NO_COMPLETION),
    "brackets": (with_json("[" * 200_000), NO_COMPLETION),
    "many lists": (with_json("[" + "[]," * 1_000_000 + "1]"), "more than the 200,000 values"),
    "many numbers": (with_json("[" + "1.5," * 1_000_000 + "1]"), "more than the 200,000 values"),
    "nested": (with_json('{"a":' * 150 + "1" + "}" * 150), "nested more than 100 levels deep"),
    "a key twice": (with_json('{"choices": [], "choices": []}'), "stands twice"),
    "a number of many digits": (
        with_json(json.dumps(completion())[:-1] + ', "usage": ' + "9" * 5000 + "}"),
        NO_COMPLETION,
    ),
    "an infinite count": (with_json('{"choices": [], "usage": {"prompt_tokens": 1e999}}'), "no finite number"),
    "no number": (with_json('{"choices": [], "usage": {"prompt_tokens": NaN}}'), "no finite number"),
    "choices of another kind": (with_json('{"choices": {"a": 1}}'), NO_COMPLETION),
    "no message": (with_json('{"choices": [{"text": "yes"}]}'), NO_COMPLETION),
    "a content of another kind": (with_json(json.dumps(completion({"a": 1}))), "the content is no text"),
    "usage of another kind": (with_json(json.dumps(completion(usage=[1]))), NO_COMPLETION),
    # errors
    "an error in many lines": (whole(b"\x1b[31m\r\n" * 1000, status="401 No"), r"status 401: ⟨U\+001B⟩\[31m"),
    "an error of another kind": (whole(b'{"error": {"message": {"a": [1]}}}', status="403 No"), "status 403"),
    "a pause of thirty years": (whole(b"busy", "Retry-After: 1000000000", status="429 Busy"), "status 429: busy"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_misbehaving_server_is_one_sentence(name: str) -> None:
    behaviour, message = CASES[name]
    with serve(behaviour) as url:
        endpoint = make_endpoint(url, timeout=0.5 if message == LATE else 20.0)
        tracemalloc.start()
        try:
            with pytest.raises(EndpointError, match=message) as raised:
                endpoint.request_completion(ASKED, seed=1)
            assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
        finally:
            tracemalloc.stop()
    text = str(raised.value)
    assert "\n" not in text and text.isprintable() and len(text) < 1000
    assert endpoint.usage.requests == 0 and endpoint.usage.cost == 0.0


@pytest.mark.parametrize(
    "used",
    [None, {}, {"prompt_tokens": -5, "completion_tokens": -(10**6)}, {"prompt_tokens": 0, "completion_tokens": 0}]
    + [{"prompt_tokens": count, "completion_tokens": count} for count in (10**400, 2.5, True, "7", [7], 10**9)],
    ids=str,
)
def test_counts_that_cannot_be_true_are_made_here_and_the_cap_holds(used: Any) -> None:
    with serve(with_json(json.dumps(completion("four" * 25, usage=used)))) as url:
        endpoint = make_endpoint(url, input_price=1.0, output_price=1.0, cost_cap=0.0005, timeout=20.0)
        with pytest.raises(CostCapError, match="after 6 requests"):
            for _ in range(100):
                endpoint.request_completion(ASKED, seed=1)
    prompt = -(-len(ASKED[0]["content"]) // 4)
    usage = endpoint.usage
    assert (usage.prompt_tokens, usage.reply_tokens, usage.uncounted) == (6 * prompt, 6 * 25, 6)
    assert usage.cost == pytest.approx((6 * prompt + 6 * 25) / 1e6)


def test_half_an_emoji_is_a_question_mark() -> None:
    with serve(with_json(r'{"choices": [{"message": {"content": "good \ud83d"}}]}')) as url:
        endpoint = make_endpoint(url, timeout=20.0)
        assert endpoint.request_completion(ASKED, seed=1).text == "good ?"
        assert endpoint.request_completion([{"role": "user", "content": "\ud83d"}], seed=1).text == "good ?"


def test_a_packed_answer_is_read() -> None:
    with serve(whole(PACKED, GZIP)) as url:
        assert make_endpoint(url, timeout=20.0).request_completion(ASKED, seed=1).text == "yes"


def test_a_pause_is_no_longer_than_an_answer_may_take() -> None:
    """The server asks for thirty years; without a limit this test would not end."""
    with serve(CASES["a pause of thirty years"][0]) as url:
        endpoint = make_endpoint(url, retries=2, timeout=0.5)
        with pytest.raises(EndpointError, match="after 3 attempts: status 429: busy"):
            endpoint.request_completion(ASKED, seed=1)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host", "an http(s) address is expected"),
        ("http://", "names no host"),
        ("http://host:99999", "is not an address"),
        ("http://[::1", "is not an address"),
        ("http://me:secret@host/v1", "does not belong in an address"),
        ("http://host/a b", "holds a character that no address has"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused(url: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        make_endpoint(url)
    assert message in str(raised.value) and "agent.options.url" in str(raised.value)


@pytest.mark.parametrize("key", ["line\nbreak", "ümlaut"])
def test_a_key_that_no_header_can_hold_is_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(OptionError, match="OPENAI_API_KEY holds a character that no key has"):
        make_endpoint("http://127.0.0.1:9/v1")


def test_further_fields_that_json_has_not_are_refused() -> None:
    with pytest.raises(OptionError, match=r"agent\.options\.extra"):
        make_endpoint("http://127.0.0.1:9/v1", extra={"bias": float("nan")}).request_completion(ASKED, seed=1)
