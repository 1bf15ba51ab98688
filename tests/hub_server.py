"""A stand-in of the hub that speaks its protocol on this machine, and programs that use it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROOT = Path(__file__).parents[1]


class HubServer:
    """Answers requests until its `server` is shut down; a subclass decides what it holds."""

    def __init__(self) -> None:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def do_POST(self) -> None:
                hub.change(self, self.rfile.read(int(self.headers.get("content-length", 0))))

            def log_message(self, *_: object) -> None:
                """Nothing is logged."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        raise NotImplementedError

    def change(self, request: BaseHTTPRequestHandler, sent: bytes) -> None:
        raise NotImplementedError

    @staticmethod
    def send(
        request: BaseHTTPRequestHandler,
        data: bytes = b"",
        status: int = 200,
        *,
        body: bool = True,
        headers: dict[str, str] | None = None,
    ) -> None:
        request.send_response(status)
        sent = {"Content-Length": str(len(data)), "Content-Type": "application/json", **(headers or {})}
        for name, value in sent.items():
            request.send_header(name, value)
        request.end_headers()
        if body:
            request.wfile.write(data)

    def send_file(self, request: BaseHTTPRequestHandler, data: bytes, body: bool) -> None:
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        self.send(request, data, body=body, headers={"Content-Type": "application/octet-stream", **headers})

    def run(self, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
        """A Python program in a process of its own: the library reads the hub's address when it is imported."""
        surroundings = {
            **os.environ,
            "HF_ENDPOINT": self.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(folder / "hf"),
            "HF_TOKEN": "hf_none",
            "FEDAGENTGYM_CACHE": str(folder / "cache"),
            "NO_PROXY": "127.0.0.1",
        }
        command = [sys.executable, *map(str, words)]
        return subprocess.run(command, env=surroundings, cwd=ROOT, capture_output=True, text=True, check=False)
