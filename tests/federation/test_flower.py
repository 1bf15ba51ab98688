"""The same run on Flower: its simulation engine, and a SuperLink with two SuperNodes on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.federation.backends import BACKENDS
from fedagentgym.federation.backends.resident import Resident, Workplace, ask
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.exchange import Request, StateName
from fedagentgym.federation.message import Message
from fedagentgym.federation.operation import Recipe
from fedagentgym.federation.server import Plan, run_rounds
from fedagentgym.federation.settings import FederationSettings

pytest.importorskip("flwr")
TOY_FILE = str(Path(__file__).with_name("toy.py"))
BIN = Path(sys.executable).parent
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

APP = """
from pathlib import Path
from fedagentgym.federation.operation import Recipe, load_plugins
load_plugins(({toy!r},))
import fedagentgym_plugin_toy as toy
from flwr.serverapp import ServerApp
from fedagentgym.federation.backends import flower_deployment
from fedagentgym.federation.server import Plan, run_rounds
from fedagentgym.federation.settings import FederationSettings

server_app = ServerApp()
client_app = flower_deployment.client_app()


@server_app.main()
def main(grid, context):
    folder = Path({folder!r})
    algorithm = toy.build(calls=2, clients=4)
    recipe = Recipe("fedagentgym_plugin_toy:build", {{"calls": 2}}, ({toy!r},))
    with flower_deployment.lend(grid):
        backend = flower_deployment.open_backend(recipe, application=algorithm, wait=300.0)
        run_rounds(algorithm, backend, Plan(folder, 0, FederationSettings(rounds=2, clients_per_round=3)))
    (folder / "done").touch()
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "toy"
description = "a test"
version = "1.0.0"
license = "Apache-2.0"
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "app:server_app"
clientapp = "app:client_app"
[tool.flwr.app.config]
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "flwr"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    with (folder / f"{Path(command[0]).name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def wait_for_port(port: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        time.sleep(0.2)


def wait_for(path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.2)


def test_the_simulation_engine_gives_the_same_bits(
    toy: ModuleType, run_toy: Callable[..., Commit], tmp_path: Path
) -> None:
    calm = run_toy(tmp_path / "calm", rounds=2, per_round=3, calls=2)
    algorithm = toy.build(calls=2, clients=4)
    recipe = Recipe("fedagentgym_plugin_toy:build", {"calls": 2}, (TOY_FILE,))
    backend = BACKENDS.get("flower-simulation")(
        recipe, folder=tmp_path / "sim" / "states", workers=1, application=algorithm
    )
    try:
        settings = FederationSettings(rounds=2, clients_per_round=3)
        simulated = run_rounds(algorithm, backend, Plan(tmp_path / "sim", 0, settings))
    finally:
        backend.close()
    assert simulated.state.digest == calm.state.digest
    assert simulated.heads == calm.heads


def test_a_deployment_gives_the_same_bits(run_toy: Callable[..., Commit], tmp_path: Path) -> None:
    calm = run_toy(tmp_path / "calm", rounds=2, per_round=3, calls=2)
    app, run, port = tmp_path / "app", tmp_path / "run", free_port()
    app.mkdir()
    run.mkdir()
    (app / "app.py").write_text(APP.format(toy=TOY_FILE, folder=str(run)))
    (app / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "flwr").mkdir()
    connection = f'[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (tmp_path / "flwr" / "config.toml").write_text(connection)
    link = [
        str(BIN / "flower-superlink"),
        "--insecure",
        "--port",
        str(port),
        "--disable-runtime-dependency-installation",
    ]
    node = [str(BIN / "flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(tmp_path, *link))
        wait_for_port(port, 180.0)
        for number, clients in enumerate(("0,1", "2,3")):
            told = {"clients": clients, "workplace": str(tmp_path / f"node{number}"), "plugins": TOY_FILE}
            told |= {"trust": "fedagentgym_plugin_toy:build", "idle": "30"}
            config = " ".join(f'{key}="{value}"' for key, value in told.items())
            stack.enter_context(running(tmp_path, *node, "--port", str(free_port()), "--node-config", config))
        stack.enter_context(running(tmp_path, str(BIN / "flwr"), "run", str(app), "local", "--stream"))
        wait_for(run / "done", 400.0)
    logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in tmp_path.glob("*.log"))
    assert (run / "done").exists(), logs
    final = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert final["digest"] == calm.state.digest
    assert not list(run.rglob("*.state"))
    assert len(list(tmp_path.glob("node*/states/*/*.state"))) >= 3


def place(folder: Path, **changes: Any) -> Workplace:
    node = {"clients": "1,2", "workplace": str(folder), "plugins": TOY_FILE, "trust": "fedagentgym_plugin_toy:build"}
    return Workplace.load({**node, "idle": "20", **changes})


def request_of(toy: ModuleType, client: int = 1, call: int = 0, base: StateName | None = None) -> Request:
    message = Message(weights={"w": np.zeros(8, np.float32)}, control={"step": call})
    return Request(client, StateName(1, call), "drift", message.encoded, base, 7, client, 1 << 20, 1 << 20)


RECIPE = {"target": "fedagentgym_plugin_toy:build", "arguments": {}, "plugins": [TOY_FILE]}


def test_a_resident_worker_answers_the_same_request_from_its_store(toy: ModuleType, tmp_path: Path) -> None:
    first = Resident(place(tmp_path)).answer(request_of(toy), RECIPE)
    runs: list[int] = []
    again = Resident(place(tmp_path))
    again._perform = lambda *given: runs.append(1)  # type: ignore[method-assign,assignment,return-value]
    assert again.answer(request_of(toy), RECIPE) == first
    assert not runs
    header, message = Resident(place(tmp_path)).answer(request_of(toy, call=1, base=StateName(1, 0)), RECIPE)
    assert header["status"] == "ok"
    assert header["changed"]
    assert message != first[1]


def test_a_resident_worker_runs_only_what_its_owner_trusts(toy: ModuleType, tmp_path: Path) -> None:
    told, _ = Resident(place(tmp_path, trust="")).answer(request_of(toy), RECIPE)
    assert "does not run 'fedagentgym_plugin_toy:build'" in told["error"]
    told, _ = Resident(place(tmp_path)).answer(request_of(toy), {**RECIPE, "plugins": ["os"]})
    assert "does not load the plugin 'os'" in told["error"]
    told, _ = Resident(place(tmp_path)).answer(request_of(toy, client=5), RECIPE)
    assert "client 5 is not on this machine" in told["error"]
    for bad in ({"clients": "a"}, {"clients": ""}, {"workplace": ""}):
        with pytest.raises(DataError, match="node-config"):
            place(tmp_path, **bad)


def test_the_proxy_starts_the_worker_and_finds_it_again(toy: ModuleType, tmp_path: Path) -> None:
    where = place(tmp_path, idle="3")
    first, second = ask(where, request_of(toy), RECIPE), ask(where, request_of(toy, client=2), RECIPE)
    assert (first.status, second.status) == ("ok", "ok"), (first.error, second.error)
    assert first.state == b""
    pids = {Message.decode(reply.message).report["pid"] for reply in (first, second)}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_outside_a_server_app_the_backend_says_what_to_do() -> None:
    with pytest.raises(OptionError, match="flower init"):
        BACKENDS.get("flower")(Recipe("a:b"))
    assert issubclass(OptionError, FedAgentGymError)
