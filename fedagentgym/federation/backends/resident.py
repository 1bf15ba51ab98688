"""The resident worker on a client's machine: it keeps model, tasks and states while Flower starts a new process per message.

Flower's ClientApp is only a proxy to it. The two communicate over a Unix socket in a folder that only their user can read; the
worker starts when first needed, serves one request at a time, and ends after some time without requests.

States never leave the machine. A successful reply is stored before it is sent: a repeated request (a message delivered again, or
a server that resumed from its last commit) gets the stored reply. States belong to the application of their run, and a request
with another application does not start from them. The states of the `KEPT_RUNS` runs that were served last are kept.

A request comes from the server, which does not own this machine: nothing in it ends the worker, names a file, or chooses code
beyond what `NodeConfig` allows, and tracebacks stay in `worker.log`. If a machine holds its own tasks, only the texts of
`RefusedError`s are sent to the server, and a run continues only while the tasks are unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from fedagentgym.base.encoding import bytes_digest, decode, digest, encode
from fedagentgym.base.errors import DataError, FedAgentGymError, RefusedError
from fedagentgym.base.files import lock_file, read_text, write_atomic
from fedagentgym.base.imports import load_plugins
from fedagentgym.base.process import get_logger, log_to_stderr
from fedagentgym.federation.backends.workers import ONE_THREAD_VARIABLES
from fedagentgym.federation.exchange import (
    MAX_CLIENTS,
    MAX_ERROR_LENGTH,
    Application,
    ApplicationSpec,
    Reply,
    Request,
    clean_text,
    perform,
)
from fedagentgym.federation.states import StateStore

log = get_logger(__name__)
KEPT_RUNS = 4
"""Number of runs whose states are kept; those of the least recently served run are removed when another begins."""
IDLE_SECONDS = 3600.0
MAX_PROCESSES = 64
START_SECONDS = 120.0
HIDDEN = "it failed on its own machine: see worker.log there"
"""The text that the server gets in place of an error that may quote tasks or paths."""


@dataclass(frozen=True)
class NodeConfig:
    """The choices of the owner of a client's machine: its clients, the folder of its states, the code that it runs.

    The server names the application to build. It is built only if `trust` names it; the app adds the application that it was
    made for. A whole package is never trusted, since everything that its modules import would be reachable. Plugins are loaded
    only if they are named here, and only `accept` decides which protections of the sandbox may be missing. `harness` is the
    command of the program that plays in runs with a harness, and `processes` the number of its processes. `tasks` are the files
    of tasks that the machine itself holds, one for each client.
    """

    folder: Path
    clients: tuple[int, ...]
    trust: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    idle: float = IDLE_SECONDS
    tasks: tuple[str, ...] = ()
    harness: str = ""
    processes: int = 4

    @classmethod
    def from_node_config(cls, node: Mapping[str, Any]) -> NodeConfig:
        """Read a SuperNode's `--node-config`, such as clients="3,4" workplace="/var/lib/fedagentgym"; a machine that holds its
        own tasks has tasks="/srv/client.yaml" in place of clients."""
        tasks = tuple(str(Path(file).absolute()) for file in str(node.get("tasks", "")).split(",") if file)
        held = {int(_load_held(file).client): file for file in tasks}
        if len(held) < len(tasks):
            raise DataError(f'--node-config tasks="{clean_text(node["tasks"], 80)}": two files are of one client')
        node = {"clients": ",".join(map(str, held)), **node}
        for key in ("clients", "workplace"):
            if not node.get(key):
                raise DataError(f'--node-config lacks {key}: give clients="0,1" workplace="/a/folder"')
        named = [part.strip() for part in str(node["clients"]).split(",")]
        if not all(part.isdecimal() and len(part) <= 10 and int(part) < MAX_CLIENTS for part in named):
            raise DataError(
                f'--node-config clients="{clean_text(node["clients"], 80)}": numbers separated by commas are expected'
            )
        if tasks and sorted(map(int, named)) != sorted(held):
            raise DataError(f"--node-config clients: the files of tasks are those of the clients {sorted(held)}")
        try:
            idle = float(str(node.get("idle", IDLE_SECONDS)))
        except ValueError:
            idle = math.nan
        if not 0.0 < idle < math.inf:
            raise DataError(
                f'--node-config idle="{clean_text(node["idle"], 80)}": a positive number of seconds is expected'
            )
        listed = {key: tuple(filter(None, str(node.get(key, "")).split(","))) for key in ("trust", "plugins", "accept")}
        processes = str(node.get("processes", 4))
        if not processes.isdecimal() or not 0 < int(processes[:3]) <= MAX_PROCESSES:
            raise DataError(
                f'--node-config processes="{clean_text(processes, 80)}": a number from 1 to {MAX_PROCESSES} is expected'
            )
        try:
            shlex.split(harness := str(node.get("harness", "")))
        except ValueError as error:
            raise DataError(f'--node-config harness="{clean_text(harness, 80)}": {error}') from None
        return cls(
            Path(str(node["workplace"])).absolute(),
            tuple(map(int, named)),
            idle=idle,
            tasks=tasks,
            harness=harness,
            processes=int(processes),
            **listed,
        )

    @property
    def address(self) -> str:
        """The socket's path: short, since such paths are limited to 107 bytes."""
        name = hashlib.sha256(str(self.folder).encode()).hexdigest()[:24]
        private = Path(tempfile.gettempdir()) / f"fedagentgym-{os.getuid()}"
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise DataError(f"{private} is not a folder that this user alone can open: remove it")
        return str(private / f"{name}.sock")

    @property
    def key(self) -> bytes:
        """The secret that proxy and worker share, readable by their user only."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.folder / "key"
        if not path.is_file():
            handle, fresh = tempfile.mkstemp(dir=self.folder, prefix=".key.", suffix=".part")
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_hex(32))
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)  # atomic: another proxy may do this at the same time
            Path(fresh).unlink()
        return path.read_bytes()

    def to_plain(self) -> dict[str, Any]:
        plain = {"workplace": str(self.folder), "clients": ",".join(map(str, self.clients)), "idle": self.idle}
        listed = {key: ",".join(getattr(self, key)) for key in ("trust", "plugins", "accept", "tasks")}
        return {**plain, **listed, "harness": self.harness, "processes": self.processes}

    @property
    def owner(self) -> dict[str, Any]:
        """The owner's decisions, as far as an application needs them."""
        return {"accept": self.accept, "harness": tuple(shlex.split(self.harness)), "processes": self.processes}


def _load_held(file: str) -> Any:
    from fedagentgym.partitions.held import load_held_settings

    return load_held_settings(file)


# ---- the proxy's side ---------------------------------------------------------------------------------------------


def forward_request(place: NodeConfig, request: Request, recipe: Mapping[str, Any]) -> Reply:
    """Pass a request to the resident worker, starting it if necessary."""
    with _connect(place) as connection:
        try:
            connection.send_bytes(encode({**request.to_header(), "recipe": dict(recipe)}))
            connection.send_bytes(request.body)
            header = decode(connection.recv_bytes())
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return Reply(request.client, "dead", error="its resident worker ended while it served the request")
    return Reply.from_header(request.client, header, message, b"" if header.get("changed") is True else None)


def _connect(place: NodeConfig) -> Any:
    """Connect to the worker; if none runs, start one as a separate process, which outlives this process."""
    deadline = time.monotonic() + START_SECONDS
    started = False
    while True:
        try:
            return Client(place.address, "AF_UNIX", authkey=place.key)
        except AuthenticationError:
            raise DataError(f"the resident worker at {place.address} has another key than {place.folder}") from None
        except (FileNotFoundError, ConnectionRefusedError):
            if not started:
                with (place.folder / "worker.log").open("ab") as out:
                    subprocess.Popen(
                        [sys.executable, "-m", __name__, encode(place.to_plain()).hex()],
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=out,
                        start_new_session=True,
                        cwd=place.folder,
                        env={**os.environ, **ONE_THREAD_VARIABLES},
                    )
                started = True
            if time.monotonic() > deadline:
                raise DataError(f"the resident worker in {place.folder} did not start: see worker.log there") from None
            time.sleep(0.1)


# ---- the worker's side --------------------------------------------------------------------------------------------


class ResidentWorker:
    """Serves requests one after the other."""

    def __init__(self, place: NodeConfig) -> None:
        self.place = place
        self._built: tuple[str, Application[Any]] | None = None
        self._opened: tuple[str, StateStore] | None = None
        load_plugins(place.plugins)

    def serve(self, encoded: bytes, data: bytes) -> tuple[dict[str, Any], bytes]:
        """The reply to a message on the socket; malformed bytes get an error as reply."""
        try:
            header = decode(encoded)
            recipe = header.pop("recipe", None) if isinstance(header, dict) else None
            request = Request.from_header(header, data)
        except DataError as error:
            failed = Reply(0, "error", error=clean_text(error, MAX_ERROR_LENGTH))
            return {**failed.to_header(), "changed": False}, b""
        return self.handle_request(request, recipe)

    def handle_request(self, request: Request, recipe: object) -> tuple[dict[str, Any], bytes]:
        """The stored reply to this request, or a new one, which is stored before it is returned if it succeeded."""
        try:
            return self._answer(request, ApplicationSpec.load(recipe))
        except FedAgentGymError as error:
            log.warning("request %s of client %d: %s", request.name, request.client, error)
            shown = HIDDEN if self.place.tasks and not isinstance(error, RefusedError) else str(error)
            failed = Reply(request.client, "error", error=clean_text(shown, MAX_ERROR_LENGTH))
        except Exception as error:
            log.exception("request %s of client %d", request.name, request.client)
            text = HIDDEN if self.place.tasks else f"{type(error).__name__}: see its worker.log"
            failed = Reply(request.client, "error", error=clean_text(text, MAX_ERROR_LENGTH))
        return {**failed.to_header(), "changed": False}, b""

    def _answer(self, request: Request, recipe: ApplicationSpec) -> tuple[dict[str, Any], bytes]:
        if request.client not in self.place.clients:
            raise RefusedError(f"client {request.client} is not on this machine")
        header = replace(request, kept=()).to_header()  # a repeated call may differ in `kept`
        asked = bytes_digest(encode({**header, "recipe": recipe.plain()}) + request.body)
        application = self._get_application(recipe)
        store = self._get_store(digest(recipe.plain()))
        if self.place.tasks:
            self._check_tasks(application, recipe, request.client)
        stored = store.get_answer(request.client, request.name, asked)
        if stored is not None:
            header, message = decode(stored)
            return header, message
        try:
            state = store.get(request.client, request.base)
        except DataError as error:
            log.warning("%s", error)
            raise RefusedError(f"client {request.client} has no state {request.base} of this run") from None
        reply = perform(application, request, state)
        if reply.detail:
            log.warning("request %s of client %d failed:\n%s", request.name, request.client, reply.detail)
        if self.place.tasks and reply.status != "ok":
            reply = replace(reply, error=HIDDEN)
        store.put(request.client, request.name, reply.state)
        header = {**replace(reply, detail="").to_header(), "changed": reply.state is not None}
        if reply.status == "ok":
            store.prune_client(request.client, request.base, frozenset(request.kept))
            store.put_answer(request.client, request.name, asked, encode([header, reply.body]))
        return header, reply.body

    def _check_tasks(self, application: Any, recipe: ApplicationSpec, client: int) -> None:
        """Raise unless the owner of the tasks allows this run, and the tasks are those with which it began."""
        found = application.admit(client)
        file = self._get_folder(digest(recipe.plain())) / f"tasks-{client}"
        if not file.is_file():
            write_atomic(file, found)
        elif read_text(file) != found:
            raise RefusedError(f"the tasks of client {client} are not those with which this run began")

    def _get_application(self, recipe: ApplicationSpec) -> Application[Any]:
        name = digest(recipe.plain())
        if self._built is None or self._built[0] != name:
            if recipe.target not in self.place.trust:
                raise RefusedError(
                    f"this machine does not run {clean_text(recipe.target, 200)!r}: name it in --node-config trust if it"
                    " should"
                )
            if foreign := sorted(set(recipe.plugins) - set(self.place.plugins)):
                raise RefusedError(
                    f"this machine does not load the plugin {clean_text(foreign[0], 200)!r}: name it in --node-config"
                    " plugins"
                )
            if stranger := {"device", "owner", "held", "folder"} & set(recipe.arguments):
                raise RefusedError(f"a recipe does not decide {min(stranger)!r} of this machine")
            held: dict[str, Any] = {}
            if self.place.tasks:  # the files of the tasks, and the folder for what their owner may read
                folder = self.place.folder / "evaluation" / name.removeprefix("sha256:")[:24]
                held = {"held": {_load_held(file).client: file for file in self.place.tasks}, "folder": folder}
            self._built = (name, replace(recipe, plugins=()).build(owner=self.place.owner, **held))
        return self._built[1]

    def _get_folder(self, recipe: str) -> Path:
        return self.place.folder / "states" / recipe.removeprefix("sha256:")[:24]

    def _get_store(self, recipe: str) -> StateStore:
        """The states of the run with this recipe; if the run is new, states of the least recently served runs are removed."""
        if self._opened is None or self._opened[0] != recipe:
            folder = self._get_folder(recipe)
            if not folder.is_dir():
                runs = [entry for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
                for old in sorted(runs, key=lambda run: run.stat().st_mtime, reverse=True)[KEPT_RUNS - 1 :]:
                    log.warning("the states in %s are removed: %d runs are kept", old, KEPT_RUNS)
                    shutil.rmtree(old, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.utime(folder)
            self._opened = (recipe, StateStore(folder, write_through=True))
        return self._opened[1]


def main(arguments: Sequence[str]) -> None:
    """Serve requests one after the other, until none came for the idle time; a second worker for the folder ends at once."""
    place = NodeConfig.from_node_config(decode(bytes.fromhex(arguments[0])))
    log_to_stderr()
    with (place.folder / "worker.lock").open("w") as lock:
        if lock_file(lock) is False:
            return
        Path(place.address).unlink(missing_ok=True)
        resident = ResidentWorker(place)
        with Listener(place.address, "AF_UNIX", authkey=place.key) as listener:
            listener._listener._socket.settimeout(place.idle)  # type: ignore[attr-defined]
            while True:
                try:
                    connection = listener.accept()
                except TimeoutError:
                    return
                except (OSError, EOFError, AuthenticationError) as error:
                    log.warning("a connection was refused: %s", error)
                    continue
                with connection, contextlib.suppress(EOFError, OSError):
                    answer, message = resident.serve(connection.recv_bytes(), connection.recv_bytes())
                    connection.send_bytes(encode(answer))
                    connection.send_bytes(message)


if __name__ == "__main__":
    main(sys.argv[1:])
