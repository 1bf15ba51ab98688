"""Servers that misbehave where the hub's library asks them: each is one sentence, within its time."""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fedagentgym.agents.model.sources import fetch_from_hub
from fedagentgym.base import hub
from fedagentgym.base.errors import DataError
from fedagentgym.base.hub import call_within, pull_folder, push_folder
from fedagentgym.base.peers import PeerError
from tests.hub_server import HubServer
from tests.network import stop_server

constants = pytest.importorskip("huggingface_hub.constants")
Answer = Callable[[BaseHTTPRequestHandler], None]
#: Made before any request: a busy machine packs it more slowly than a client waits.
PACKED = gzip.compress(b" " * (64 << 20), compresslevel=1)


class Server(HubServer):
    """A hub that gives one answer to everything."""

    given: Answer

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        type(self).given(request)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", made.url)
    monkeypatch.setattr(hub, "MAX_ANSWER_BYTES", 1 << 20)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    stop_server(made.server)


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for servers that are to be given up: a busy machine may be late with any answer."""
    monkeypatch.setattr(hub, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(hub, "ASKING_SECONDS", 1.5)
    monkeypatch.setattr("fedagentgym.agents.model.sources.ASKING_SECONDS", 1.5)


def begin(request: BaseHTTPRequestHandler, **headers: str) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()


def send_packed(request: BaseHTTPRequestHandler) -> None:
    begin(request, Content_Encoding="gzip", Content_Length=str(len(PACKED)))
    request.wfile.write(PACKED)


def send_much(request: BaseHTTPRequestHandler) -> None:
    begin(request)
    for _ in range(4096):
        request.wfile.write(b" " * (1 << 16))


def send_slowly(request: BaseHTTPRequestHandler) -> None:
    begin(request)
    for _ in range(400):
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.02)


def send_heads(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    for number in range(400):
        request.send_header(f"X-{number}", "more")
        request.flush_headers()
        time.sleep(0.02)


def send_nothing(request: BaseHTTPRequestHandler) -> None:
    time.sleep(8)


def put_off(request: BaseHTTPRequestHandler) -> None:
    request.send_response(429)
    request.send_header("Retry-After", "1000000000")
    request.send_header("Content-Length", "0")
    request.end_headers()


def send_nonsense(request: BaseHTTPRequestHandler) -> None:
    begin(request, Content_Length="2")
    request.wfile.write(b"[]")


def send_nested(request: BaseHTTPRequestHandler) -> None:
    begin(request, Content_Length="400000")
    request.wfile.write(b"[" * 400_000)


@pytest.mark.parametrize(
    "answer",
    [send_packed, send_much, send_slowly, send_heads, send_nothing, put_off, send_nonsense, send_nested],
)
@pytest.mark.parametrize("fetch", ["a repository", "a model"])
@pytest.mark.usefixtures("short_times")
def test_an_answer_about_a_repository_is_bounded(
    fetch: str, answer: Answer, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "given", staticmethod(answer), raising=False)
    with pytest.raises(DataError, match=r"^cannot (pull|fetch) me/it"):
        if fetch == "a model":
            fetch_from_hub("me/it", tmp_path)
        else:
            pull_folder("me/it", tmp_path / "new", lambda made: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("size", "most", "fits"), [(10, 100, True), (100, 100, True), (101, 100, False), (1 << 20, 100, False)]
)
def test_a_file_is_as_long_as_any_may_be(
    size: int, most: int, fits: bool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Any = pytest.importorskip("huggingface_hub")

    def send(request: BaseHTTPRequestHandler) -> None:
        HubServer.send(request, b"x" * size)

    monkeypatch.setattr(Server, "given", staticmethod(send), raising=False)
    monkeypatch.setattr(hub, "MAX_BYTES", {"model": most})
    with hub.open_hub("cannot"):
        if fits:
            assert library.get_session().get(f"{server.url}/a").content == b"x" * size
    if not fits:
        with pytest.raises(DataError, match="longer than the 100 bytes"), hub.open_hub("cannot"):
            library.get_session().get(f"{server.url}/a")


@pytest.mark.parametrize("silent", ["create_repo", "list_repo_files", "create_commit"])
def test_a_push_ends_if_the_hub_is_silent(
    silent: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has a time; a commit has longer, by the size of its files."""
    library: Any = pytest.importorskip("huggingface_hub")
    (tmp_path / "a.json").write_text(" " * 100)
    monkeypatch.setattr(hub, "ASKING_SECONDS", 0.3)
    monkeypatch.setattr(hub, "TRANSFER_SECONDS", 0.2)
    monkeypatch.setattr(hub, "SLOWEST_PUSH", 1000)
    for name in ("create_repo", "list_repo_files", "create_commit"):
        wait = 5.0 if name == silent else 0.0
        monkeypatch.setattr(library.HfApi, name, lambda *_, wait=wait, **__: time.sleep(wait) or [])
    with pytest.raises(DataError, match=r"^cannot push to me/it: no end within 0\.3 s"):
        push_folder(tmp_path, "dataset", "me/it")


@pytest.mark.parametrize("shown", [True, False])
def test_afterwards_progress_bars_are_as_they_were(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: Any = pytest.importorskip("huggingface_hub.utils")
    module: Any = sys.modules["huggingface_hub.utils.tqdm"]  # the package has a class of that name
    monkeypatch.setattr(module, "HF_HUB_DISABLE_PROGRESS_BARS", None)
    monkeypatch.setattr(module, "progress_bar_states", {"_global": shown})
    with hub.open_hub("cannot"):
        assert bars.are_progress_bars_disabled()
    assert bars.are_progress_bars_disabled() is not shown


def test_afterwards_the_library_is_as_it_was(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(Server, "given", staticmethod(send_packed), raising=False)
    with hub.limit_answers():
        pass
    assert len(library.get_session().get(f"{server.url}/a").content) == 64 << 20


def test_a_client_of_the_user_is_limited_and_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = pytest.importorskip("huggingface_hub")
    http: Any = sys.modules["huggingface_hub.utils._http"]
    seen: list[str] = []

    def make() -> Any:
        client = http.default_client_factory()
        client.event_hooks["request"] += [lambda request: seen.append(str(request.url))]
        return client

    monkeypatch.setattr(Server, "given", staticmethod(send_packed), raising=False)
    library.set_client_factory(make)
    try:
        with hub.limit_answers(), pytest.raises(PeerError, match="compressed"):
            library.get_session().get(f"{server.url}/a")
        library.get_session().get(f"{server.url}/b")
    finally:
        library.set_client_factory(http.default_client_factory)
    assert seen == [f"{server.url}/a", f"{server.url}/b"]


def test_a_call_has_its_value_or_error_or_a_limit() -> None:
    assert call_within(5.0, lambda: None) is None
    assert call_within(5.0, lambda: [3]) == [3]
    with pytest.raises(ZeroDivisionError):
        call_within(5.0, lambda: 1 // 0)
    with pytest.raises(PeerError, match=r"no end within 0\.05 s"):
        call_within(0.05, lambda: time.sleep(2))
