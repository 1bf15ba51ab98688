"""Connections are refused and noted while a test runs, in its process and in those that it starts; servers end."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHILD = """\
import sys
sys.path.append({root!r})
from tests.network import block_connections, write_note
import pytest
block_connections(pytest.MonkeyPatch(), write_note)
"""
LOG = "FEDAGENTGYM_TRIED"


def write_note(address: str) -> None:
    """Note an address that was tried in the file that all processes of a test share."""
    with Path(os.environ[LOG]).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}: {address}\n")


def block_connections(patch: pytest.MonkeyPatch, note: Callable[[str], None]) -> None:
    """Refuse and note every connection but those between processes of this machine (Unix sockets)."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def refuse(address: object) -> OSError:
        note(str(address))
        return OSError(101, f"blocked by the test: {address}")

    def guarded(this: socket.socket, address: Any) -> None:
        if this.family != socket.AF_UNIX:
            raise refuse(address)
        connect(this, address)

    def guarded_ex(this: socket.socket, address: Any) -> int:
        if this.family != socket.AF_UNIX:
            raise refuse(address)
        return connect_ex(this, address)

    def look_up(host: Any, *_: Any, **__: Any) -> Any:
        raise refuse(host)

    patch.setattr(socket.socket, "connect", guarded)
    patch.setattr(socket.socket, "connect_ex", guarded_ex)
    patch.setattr(socket, "getaddrinfo", look_up)


def stop_server(server: socketserver.BaseServer) -> None:
    """End a server that serves in a thread. Its own `shutdown` waits for that thread without a limit, and a thread that is
    stuck in a connection would block all tests for ever."""
    asked = threading.Thread(target=server.shutdown, daemon=True)
    asked.start()
    asked.join(5.0)
    server.server_close()


@contextlib.contextmanager
def blocked() -> Iterator[list[str]]:
    """No connection of this process succeeds in the `with` block; yields the addresses that were tried. The setting that keeps
    the hub's libraries from the network in tests is undone: our own code must do that."""
    tried: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        for name in ("huggingface_hub.constants", "datasets.config"):
            with contextlib.suppress(ImportError):
                patch.setattr(f"{name}.HF_HUB_OFFLINE", False)
        block_connections(patch, tried.append)
        yield tried


def guard_children(folder: Path) -> tuple[dict[str, str], Path]:
    """An environment under which Python processes refuse connections, and the file that lists those that were tried."""
    root, log = Path(__file__).parent.parent, folder / "tried"
    (folder / "sitecustomize.py").write_text(CHILD.format(root=str(root)))
    log.touch()
    kept = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(folder), str(root)]), LOG: str(log)}, log
