"""Servers on this machine and the web pages of others. What is read from peers: `tests/agents/test_misbehaving.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, MutableMapping
from typing import Any

import pytest

from fedagentgym.base.peers import HostCheck

LOCAL, LAN = ("127.0.0.1", 8000), ("10.0.0.7", 8000)


def ask(
    kind: str, headers: dict[str, str], names: Collection[str] = (), server: tuple[str, int] | None = LOCAL
) -> list[MutableMapping[str, Any]]:
    """The answer of a server behind the check."""
    sent: list[MutableMapping[str, Any]] = []

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "played"})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": f"{kind}.connect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    asyncio.run(HostCheck(app, names)({"type": kind, "headers": raw, "server": server}, receive, send))
    return sent


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("headers", "names", "server"),
    [
        ({"Host": "127.0.0.1:8000"}, (), LOCAL),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, (), LOCAL),
        ({"Host": "[::1]:8000"}, (), ("::1", 8000)),
        ({"Host": "10.0.0.7:8000"}, (), LAN),
        ({"Host": "games.test", "Origin": "https://games.test"}, ("games.test",), LOCAL),
        ({"Host": "games.test"}, ("*",), LAN),
        ({"Host": "10.0.0.7:8000", "Origin": "https://games.test"}, ("games.test",), LAN),
    ],
)
def test_own_pages_and_programs_are_served(
    kind: str, headers: dict[str, str], names: tuple[str, ...], server: Any
) -> None:
    assert ask(kind, headers, names, server) == [{"type": "played"}]


@pytest.mark.parametrize(
    ("headers", "names", "server"),
    [
        ({"Host": "127.0.0.1:8000", "Origin": "https://evil.test"}, (), LOCAL),
        ({"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:9000"}, (), LOCAL),
        ({"Host": "127.0.0.1:8000", "Origin": "null"}, (), LOCAL),
        ({"Host": "127.0.0.1:8000", "Origin": "https://127.0.0.1:8000@evil.test"}, (), LOCAL),
        ({"Host": "127.0.0.1:8000", "Origin": "https://evil.test"}, ("*",), LAN),
        ({"Host": "evil.test:8000", "Origin": "http://evil.test:8000"}, (), LOCAL),
        ({"Host": "evil.test:8000"}, ("*",), LOCAL),
        ({"Host": "evil.test:8000"}, ("*",), ("::1", 8000)),
        ({"Host": "evil.test:8000"}, ("*",), None),
        ({"Host": "evil.test:8000"}, ("games.test",), LAN),
        ({"Host": "127.0.0.1:x"}, (), LOCAL),
        ({"Host": "127.0.0.1/evil"}, (), LOCAL),
        ({"Host": ""}, (), LOCAL),
        ({}, (), LOCAL),
    ],
)
def test_pages_of_others_are_refused(headers: dict[str, str], names: tuple[str, ...], server: Any) -> None:
    start, body = ask("http", headers, names, server)
    assert start["status"] == 403 and body["body"].endswith(b"make_app(hosts=)\n")
    (closed,) = ask("websocket", headers, names, server)
    assert closed["type"] == "websocket.close" and closed["code"] == 1008


def test_other_messages_pass() -> None:
    assert ask("lifespan", {}) == [{"type": "played"}]
