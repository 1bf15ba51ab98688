"""The same run on Flower: a SuperLink with two SuperNodes on loopback."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.settings import merge
from fedagentgym.cli.main import main
from fedagentgym.experiment.run import train
from fedagentgym.federation.backends import BACKENDS
from fedagentgym.federation.backends.resident import NodeConfig, ResidentWorker, forward_request
from fedagentgym.federation.commits import CommitStore
from fedagentgym.federation.exchange import ApplicationSpec, Request, StateName
from fedagentgym.federation.message import Message, update_norm
from fedagentgym.federation.records import read_metrics_log
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.federation.conftest import TOY, TOY_FILE

pytest.importorskip("flwr")
x509 = pytest.importorskip("cryptography.x509")
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.x509.oid import NameOID  # noqa: E402

BIN = Path(sys.executable).parent
FEDAGENT: dict[str, Any] = merge(
    SMALL_CONFIG,
    {
        "algorithm": {"name": "fedagent", "local_steps": 1},
        "partition": {"clients": 2},
        "learning": {"keep_optimizer": True},
        "federation": {"clients_per_round": None},
        "evaluation": None,
    },
)
HONEST = (("0", ""), ("1", ""))
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "flwr"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    with (folder / f"{command[0]}.log").open("ab") as log:
        command = (str(BIN / command[0]), *command[1:])
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True, cwd=folder)
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


def wait_for(happened: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.2)


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def authority(folder: Path) -> None:
    """ca.crt, and server.pem with server.key signed by it, for this machine's own addresses."""
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])

    def signed(name: str, key: Any, issuer: str, by: Any, extension: Any) -> x509.Certificate:
        subject, signer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)]) for who in (name, issuer))
        built = x509.CertificateBuilder().subject_name(subject).issuer_name(signer).public_key(key.public_key())
        built = built.serial_number(x509.random_serial_number()).not_valid_before(soon - datetime.timedelta(days=2))
        return built.not_valid_after(soon).add_extension(extension, critical=False).sign(by, hashes.SHA256())

    ours, its = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = signed("an authority", ours, "an authority", ours, x509.BasicConstraints(ca=True, path_length=None))
    server = signed("localhost", its, "an authority", ours, names)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    (folder / "server.key").write_bytes(its.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def node_key(file: Path) -> None:
    """A key as of `ssh-keygen -t ecdsa -b 384 -f FILE`."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    file.with_suffix(".key.pub").write_bytes(public)


def run_alone(tmp_path: Path, name: str, **federation: Any) -> str:
    """The digest at which FEDAGENT ends on this machine."""
    return train(merge(FEDAGENT, {"federation": federation, "output": {"folder": str(tmp_path / name)}})).digest


@pytest.mark.slow
def test_fedagent_ends_alike_in_a_process_and_a_deployment(tmp_path: Path) -> None:
    """The real algorithm, with an optimizer in every client's state; the deployment with TLS and known nodes only."""
    assert deployed(tmp_path, tmp_path / "deployment") == run_alone(tmp_path, "sequential")
    assert len(list((tmp_path / "sequential").rglob("*.state"))) >= 2
    assert not list((tmp_path / "deployment").rglob("*.state"))
    assert len(list(tmp_path.glob("node*/states/*/*/*.state"))) >= 2


@pytest.mark.slow
def test_fedagent_ends_alike_in_a_process_and_a_pool(tmp_path: Path) -> None:
    """Ordinary tests run every method in a pool (`check_algorithm`); `test_flower_simulation_app.py` runs a simulation."""
    alone = run_alone(tmp_path, "sequential")
    assert run_alone(tmp_path, "pool", workers=2) == alone


PERSONAL = merge(FEDAGENT, {"algorithm": {"name": "personal-head", "local_steps": 1}})


def read_states(folder: Path, pattern: str) -> dict[str, bytes]:
    """The state of every client after the last round."""
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob(pattern))}


@pytest.mark.slow
def test_personal_parameters_are_the_same_on_every_backend(tmp_path: Path) -> None:
    """Resumed runs are compared by `check_algorithm`."""
    places: dict[str, dict[str, Any]] = {
        "sequential": {},
        "pool": {"workers": 2},
    }
    found = []
    for name, federation in places.items():
        train(merge(PERSONAL, {"federation": federation, "output": {"folder": str(tmp_path / name)}}))
        found.append(read_states(tmp_path / name, "states/*/0002-*.state"))
    assert len(found[0]) == 2 and found[0] == found[1]
    assert b"personal/" in found[0]["000000"]
    deployed(tmp_path, tmp_path / "deployment", PERSONAL)
    assert read_states(tmp_path, "node*/states/*/*/0002-*.state") == found[0]
    assert not list((tmp_path / "deployment").rglob("*.state"))


def deployed(
    here: Path, folder: Path, config: dict[str, Any] = FEDAGENT, nodes: Sequence[tuple[str, str]] = HONEST
) -> str:
    """Run a configuration by the commands of docs/how-to/deploy-with-flower.md: SuperLink, SuperNodes with these clients
    and plugins, and a stranger; the final digest."""
    port = free_port()
    authority(here)
    (here / "run.yaml").write_text(yaml.safe_dump(merge(config, {"output": {"folder": str(folder)}})))
    assert main(["flower", "init", str(here / "app"), "--config", str(here / "run.yaml")]) == 0
    (here / "flwr").mkdir()
    connection = f'[superlink.mine]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{here / "ca.crt"}"\n'
    (here / "flwr" / "config.toml").write_text(connection)
    link = [
        "flower-superlink",
        "--ssl-certfile",
        "server.pem",
        "--ssl-keyfile",
        "server.key",
        "--ssl-ca-certfile",
        "ca.crt",
    ]
    link += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]
    node = ["flower-supernode", "--superlink", f"127.0.0.1:{port}", "--root-certificates", "ca.crt"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(here, *link))
        wait_for(lambda: listening(port), 180.0)
        for number, (clients, plugins) in enumerate([*nodes, ("0,1", "")]):
            key = here / f"node{number}.key"
            node_key(key)
            if number < len(nodes):
                with running(here, "flwr", "supernode", "register", f"{key}.pub", "mine") as registration:
                    assert registration.wait(timeout=300) == 0, logs(here)
            told = f'clients="{clients}" workplace="{here / f"node{number}"}" plugins="{plugins}" idle="30"'
            given = ["--auth-supernode-private-key", str(key), "--port", str(free_port()), "--node-config", told]
            stack.enter_context(running(here, *node, *given))
        stack.enter_context(running(here, "flwr", "run", str(here / "app"), "mine", "--stream"))
        wait_for((folder / "result.json").exists, 900.0)
    assert (folder / "result.json").exists(), logs(here)
    assert not (here / f"node{len(nodes)}").exists(), "a node that nobody registered was asked"
    digest: str = json.loads((folder / "result.json").read_text())["state"]
    return digest


HOSTILE_NODE = """
import numpy as np
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.federation.message import Message, update_norm
from fedagentgym.federation.records import read_metrics_log

honest = Averaging.make_reply


def change(weights, by):
    return {name: (value + by).astype(value.dtype) for name, value in weights.items()}


def make_reply(self, client, *given, **more):
    reply = honest(self, client, *given, **more)
    weights, control, report = reply.weights, dict(reply.control), dict(reply.report)
    count = sum(value.size for value in weights.values())
    match client.round:
        case 1:
            report = {"metrics": {"episodes": -7}}
        case 2:
            weights = change(weights, np.nan)
        case 3:
            weights = change(weights, 1e6)
        case 4:
            raise RuntimeError("\\x1b[2J is " + "long " * 1000)
        case 5:
            control["examples"] = "all"
        case 6:
            report = {"metrics": {"m": "x" * 10_000_000}}
        case 7:
            weights = change(weights, 0.9 / count**0.5)
    return Message(weights=weights, control=control, report=report)


Averaging.make_reply = make_reply
"""


@pytest.mark.slow
def test_a_hostile_node_is_refused_or_outvoted(tmp_path: Path) -> None:
    """It is registered, holds its key, and talks TLS. Whatever its client sends, the others go on; an update that no check
    refuses is outvoted by a robust rule."""
    (tmp_path / "hostile.py").write_text(HOSTILE_NODE)
    changes: dict[str, Any] = {
        "algorithm": {"aggregation": "median", "checks": {"max_norm": 1.0, "max_ratio": None}},
        "partition": {"clients": 4},
        "federation": {"rounds": 7, "quorum": 3},
    }
    nodes = (("0,1,2", ""), ("3", str(tmp_path / "hostile.py")))
    deployed(tmp_path, tmp_path / "run", merge(FEDAGENT, changes), nodes)
    records = list(read_metrics_log(tmp_path / "run" / "metrics.jsonl"))
    failures = [one for record in records for one in record["failures"]]
    told = [f"round {one['round']}, client {one['client']}, {one['reason']}: {one['message']}" for one in failures]
    assert [(one["round"], one["client"]) for one in failures] == [(number, 3) for number in range(1, 7)], told
    assert {one["reason"] for one in failures} <= {"refused", "error"}, told
    assert all(one["message"].isprintable() and len(one["message"]) <= 500 for one in failures), told
    assert all({"0", "1", "2"} <= set(record["clients"]) for record in records[1:])
    before, after = (CommitStore(tmp_path / "run" / "rounds").read(number).state.parameters for number in (6, 7))
    norms = {client: numbers["update_norm"] for client, numbers in records[7]["clients"].items()}
    honest = sum(norms[client] for client in "012")
    assert update_norm(before, after) <= honest + 1e-6 < norms["3"] / 4, "a mean would have moved further"


def logs(folder: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in folder.glob("*.log"))


def place(folder: Path, **changes: Any) -> NodeConfig:
    node = {"clients": "1,2", "workplace": str(folder), "plugins": TOY_FILE, "trust": f"{TOY}:build"}
    return NodeConfig.from_node_config({**node, "idle": "20", **changes})


def request_of(toy: ModuleType, client: int = 1, call: int = 0, base: StateName | None = None) -> Request:
    message = Message(weights={"w": np.zeros(8, np.float32)}, control={"step": call})
    return Request(client, StateName(1, call), "drift", message.encoded, base, 7, client, 1 << 20, 1 << 20)


RECIPE = {"target": f"{TOY}:build", "arguments": {}, "plugins": [TOY_FILE]}


def test_a_resident_worker_answers_the_same_request_from_its_store(toy: ModuleType, tmp_path: Path) -> None:
    first = ResidentWorker(place(tmp_path)).handle_request(request_of(toy), RECIPE)
    runs: list[int] = []
    again = ResidentWorker(place(tmp_path))
    again._get_state = lambda *given: runs.append(1)  # type: ignore[method-assign,assignment,return-value,func-returns-value]
    assert again.handle_request(request_of(toy), RECIPE) == first
    assert not runs
    header, message = ResidentWorker(place(tmp_path)).handle_request(
        request_of(toy, call=1, base=StateName(1, 0)), RECIPE
    )
    assert header["status"] == "ok"
    assert header["changed"]
    assert message != first[1]


def test_a_resident_worker_runs_only_what_its_owner_trusts(toy: ModuleType, tmp_path: Path) -> None:
    told, _ = ResidentWorker(place(tmp_path, trust="")).handle_request(request_of(toy), RECIPE)
    assert f"does not run '{TOY}:build'" in told["error"]
    told, _ = ResidentWorker(place(tmp_path)).handle_request(request_of(toy), {**RECIPE, "plugins": ["os"]})
    assert "does not load the plugin 'os'" in told["error"]
    told, _ = ResidentWorker(place(tmp_path)).handle_request(request_of(toy, client=5), RECIPE)
    assert "client 5 is not on this machine" in told["error"]
    for bad in ({"clients": "a"}, {"clients": ""}, {"workplace": ""}):
        with pytest.raises(DataError, match="node-config"):
            place(tmp_path, **bad)


def test_the_proxy_starts_the_worker_and_finds_it_again(toy: ModuleType, tmp_path: Path) -> None:
    where = place(tmp_path, idle="3")
    first, second = (
        forward_request(where, request_of(toy), RECIPE),
        forward_request(where, request_of(toy, client=2), RECIPE),
    )
    assert (first.status, second.status) == ("ok", "ok"), (first.error, second.error)
    assert first.state == b""
    pids = {Message.decode(reply.message).report["pid"] for reply in (first, second)}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_outside_a_server_app_the_backend_says_what_to_do() -> None:
    with pytest.raises(OptionError, match="flower init"):
        BACKENDS.get("flower")(ApplicationSpec("a:b"))
    assert issubclass(OptionError, FedAgentGymError)
