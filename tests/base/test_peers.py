"""Servers on this machine and the web pages of others. What is read from peers: `tests/agents/test_misbehaving.py`."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Collection, Iterator, MutableMapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.base import peers
from fedagentgym.base.errors import OptionError
from fedagentgym.base.peers import HostCheck, PeerError, make_key_headers, open_answer
from tests.network import stop_server

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


def test_a_key_becomes_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-1")
    assert make_key_headers("TEST_KEY") == {"Authorization": "Bearer sk-1"}
    monkeypatch.setenv("TEST_KEY", "")
    assert make_key_headers("TEST_KEY") == make_key_headers("TEST_KEY_THAT_IS_NOT_SET") == {}
    for wrong in ("line\nbreak", "ümlaut", "sk-1\r"):
        monkeypatch.setenv("TEST_KEY", wrong)
        with pytest.raises(OptionError, match="the variable TEST_KEY holds a character that no key has"):
            make_key_headers("TEST_KEY")


def test_other_messages_pass() -> None:
    assert ask("lifespan", {}) == [{"type": "played"}]


# ---- encrypted peers --------------------------------------------------------------------------------------------------


@pytest.fixture
def encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server with a certificate that is trusted here. It answers `/` at once, and all else by drops."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = made.add_extension(host, critical=False).sign(key, hashes.SHA256())
    file = tmp_path / "server.pem"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(*form) + certificate.public_bytes(serialization.Encoding.PEM))
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            for byte in b"hello\n":
                if self.path != "/" and ended.wait(0.4):
                    return
                self.wfile.write(bytes([byte]))

        def log_message(self, *args: Any) -> None:
            """Keep the output of the tests clean."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(peers, "_make_context", lambda: ssl.create_default_context(cafile=str(file)))
    yield f"https://127.0.0.1:{server.server_port}"
    ended.set()
    stop_server(server)


def test_an_encrypted_peer_is_read_by_the_same_clock(encrypted: str) -> None:
    with open_answer(encrypted, seconds=20.0) as answer:
        assert answer.read(100) == b"hello\n"
    with pytest.raises(PeerError, match="within"), open_answer(f"{encrypted}/slow", seconds=0.8) as answer:
        answer.read(100)


def test_a_certificate_that_is_not_trusted_is_refused(encrypted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_make_context", ssl.create_default_context)
    with pytest.raises(PeerError, match="certificate"), open_answer(encrypted, seconds=20.0):
        pass
