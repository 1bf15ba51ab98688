"""The resident worker on a client's machine: it keeps model, tasks and states while Flower starts a new process per message.

Flower's ClientApp is only a proxy to it. The two talk over a Unix socket in a folder that only their user can read; the worker
starts when first needed, serves one request at a time, and ends when nobody has asked for a while.

States never leave the machine. Every answer is stored before it is sent: a request that comes twice (a message delivered again,
a server that went back to its last commit) gets the stored answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import bytes_digest, decode, digest, encode
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.logs import log_to_stderr, logger
from fedagentgym.base.plugins import load_plugins
from fedagentgym.federation.backends.process import ONE_THREAD
from fedagentgym.federation.exchange import Reply, Request, perform
from fedagentgym.federation.operation import Application, ApplicationSpec
from fedagentgym.federation.states import StateStore

log = logger(__name__)
OWN = "fedagentgym."
IDLE_SECONDS = 3600.0
START_SECONDS = 120.0


@dataclass(frozen=True)
class Workplace:
    """What the owner of a client's machine decides: whom it stands for, where it keeps its states, whose code it runs.

    The server names the application to build; it is built only if it is one of this package's own, or in `trust`. Plugins are
    loaded only if they are named here.
    """

    folder: Path
    clients: tuple[int, ...]
    trust: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    idle: float = IDLE_SECONDS

    @classmethod
    def load(cls, node: Mapping[str, Any]) -> Workplace:
        """From a SuperNode's `--node-config`: clients="3,4" workplace="/var/lib/fedagentgym"."""
        for key in ("clients", "workplace"):
            if not node.get(key):
                raise DataError(f'--node-config lacks {key}: give clients="0,1" workplace="/a/folder"')
        try:
            clients = tuple(int(part) for part in str(node["clients"]).split(","))
        except ValueError:
            raise DataError(
                f'--node-config clients="{node["clients"]}": numbers separated by commas are expected'
            ) from None
        listed = {key: tuple(filter(None, str(node.get(key, "")).split(","))) for key in ("trust", "plugins")}
        return cls(
            Path(str(node["workplace"])).absolute(), clients, idle=float(node.get("idle", IDLE_SECONDS)), **listed
        )

    @property
    def address(self) -> str:
        """The socket's path: short, since such paths may have 107 bytes only."""
        name = hashlib.sha256(str(self.folder).encode()).hexdigest()[:24]
        private = Path(tempfile.gettempdir()) / f"fedagentgym-{os.getuid()}"
        private.mkdir(mode=0o700, exist_ok=True)
        if private.stat().st_uid != os.getuid():
            raise DataError(f"{private} belongs to somebody else")
        return str(private / f"{name}.sock")

    @property
    def key(self) -> bytes:
        """The secret that proxy and worker share, readable by their user only."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / "key"
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(32))
        return path.read_bytes()

    def plain(self) -> dict[str, Any]:
        plain = {"workplace": str(self.folder), "clients": ",".join(map(str, self.clients)), "idle": self.idle}
        return {**plain, "trust": ",".join(self.trust), "plugins": ",".join(self.plugins)}


# ---- the proxy's side ---------------------------------------------------------------------------------------------


def ask(place: Workplace, request: Request, recipe: Mapping[str, Any]) -> Reply:
    """Hand a request to the resident worker, starting it if it is not there."""
    connection = _connect(place)
    with connection:
        connection.send_bytes(encode({**request.header(), "recipe": dict(recipe)}))
        connection.send_bytes(request.body)
        try:
            header = decode(connection.recv_bytes())
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return Reply(request.client, "dead", error="its resident worker ended while it served the request")
    return _reply(request.client, header, message)


def _reply(client: int, header: Mapping[str, Any], message: bytes) -> Reply:
    told = {name: header[name] for name in ("error", "detail", "seconds")}
    return Reply(client, header["status"], message, b"" if header["changed"] else None, **told)


def _connect(place: Workplace) -> Any:
    deadline = time.monotonic() + START_SECONDS
    started = False
    while True:
        try:
            return Client(place.address, "AF_UNIX", authkey=place.key)
        except (FileNotFoundError, ConnectionRefusedError):
            if not started:
                _start(place)
                started = True
            if time.monotonic() > deadline:
                raise DataError(f"the resident worker in {place.folder} did not start: see worker.log there") from None
            time.sleep(0.1)


def _start(place: Workplace) -> None:
    """A process of its own, which outlives this one."""
    with (place.folder / "worker.log").open("ab") as out:
        subprocess.Popen(
            [sys.executable, "-m", "fedagentgym.federation.backends.resident", encode(place.plain()).hex()],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd=place.folder,
            env={**os.environ, **ONE_THREAD},
        )


# ---- the worker's side --------------------------------------------------------------------------------------------


class Resident:
    """Serves requests one after the other."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        self._store = StateStore(place.folder / "states", write_through=True)
        self._built: tuple[str, Application[Any]] | None = None
        load_plugins(place.plugins)

    def answer(self, request: Request, recipe: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """The stored answer to this very request, or a new one, stored before it is given."""
        asked = bytes_digest(encode({**request.header(), "recipe": dict(recipe)}) + request.body)
        stored = self._store.answer(request.client, request.name, asked)
        if stored is not None:
            header, message = decode(stored)
            return header, message
        reply = self._perform(request, recipe)
        if reply.state is not None:
            self._store.put(request.client, request.name, reply.state)
        told = {"status": reply.status, "error": reply.error, "detail": reply.detail, "seconds": reply.seconds}
        header = {**told, "changed": reply.state is not None}
        if reply.status == "ok":
            self._store.forget_before(request.client, request.base)
            self._store.put_answer(request.client, request.name, asked, encode([header, reply.body]))
        return header, reply.body

    def _perform(self, request: Request, recipe: Mapping[str, Any]) -> Reply:
        try:
            if request.client not in self.place.clients:
                raise DataError(f"client {request.client} is not on this machine: it has {list(self.place.clients)}")
            application = self._application(recipe)
            return perform(application, request, self._store.get(request.client, request.base))
        except FedAgentGymError as error:
            return Reply(request.client, "error", error=str(error)[:500])

    def _application(self, recipe: Mapping[str, Any]) -> Application[Any]:
        name = digest(recipe)
        if self._built is None or self._built[0] != name:
            target = str(recipe["target"])
            if not target.startswith(OWN) and target not in self.place.trust:
                raise DataError(f"this machine does not run {target!r}: name it in --node-config trust if it should")
            if foreign := sorted(set(recipe["plugins"]) - set(self.place.plugins)):
                raise DataError(
                    f"this machine does not load the plugin {foreign[0]!r}: name it in --node-config plugins"
                )
            self._built = (name, replace(ApplicationSpec.load(recipe), plugins=()).build())
        return self._built[1]


def main(arguments: Sequence[str]) -> None:
    place = Workplace.load(decode(bytes.fromhex(arguments[0])))
    log_to_stderr()
    with (place.folder / "worker.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        Path(place.address).unlink(missing_ok=True)
        resident = Resident(place)
        with Listener(place.address, "AF_UNIX", authkey=place.key) as listener:
            _serve(listener, resident)


def _serve(listener: Listener, resident: Resident) -> None:
    listener._listener._socket.settimeout(resident.place.idle)  # type: ignore[attr-defined]
    while True:
        try:
            connection = listener.accept()
        except TimeoutError:
            return
        except (OSError, EOFError) as error:
            log.warning("a connection was refused: %s", error)
            continue
        with connection, contextlib.suppress(EOFError, OSError):
            header = decode(connection.recv_bytes())
            request = Request.load(header, connection.recv_bytes())
            told, message = resident.answer(request, header["recipe"])
            connection.send_bytes(encode(told))
            connection.send_bytes(message)


if __name__ == "__main__":
    main(sys.argv[1:])
