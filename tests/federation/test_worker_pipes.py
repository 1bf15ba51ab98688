"""A worker process that writes garbage into its pipe costs its client only; options that a backend does not know."""

from __future__ import annotations

import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.encoding import encode
from fedagentgym.base.errors import OptionError
from fedagentgym.base.process import ClientActivity, listen
from fedagentgym.experiment.config import load_config
from fedagentgym.federation.algorithm import Clients
from fedagentgym.federation.backends import BACKENDS, load_options, workers
from fedagentgym.federation.backends.workers import WorkerDied, WorkerError, WorkerProcess
from fedagentgym.federation.exchange import Request, StateName
from fedagentgym.federation.message import Message
from fedagentgym.testing.runs import SMALL_CONFIG
from tests.federation.forging import forge_text, nest

REQUEST = Request(1, StateName(1, 0), "drift", b"", None, 7, 1, 1000, 1000)
GOOD = {"status": "ok", "error": "", "detail": "", "seconds": 0.5, "answer": 1, "state": None}


@pytest.fixture
def pipe() -> Any:
    """A worker's process object on one end of a pipe, and the other end in our hands."""
    ours, theirs = socket.socketpair()
    ours.settimeout(None)
    worker = WorkerProcess.__new__(WorkerProcess)
    worker.connection, other = Connection(ours.detach()), Connection(theirs.detach())
    worker._ready = False
    worker._process = SimpleNamespace(wait=lambda timeout=None: 0, send_signal=lambda number: None)  # type: ignore[assignment]
    with other:
        yield worker, other
        worker.kill()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"garbage",
        encode([1]),
        encode("ok"),
        encode({}),
        encode({**GOOD, "status": "fine"}),
        encode({**GOOD, "seconds": float("nan")}),
        encode({**GOOD, "seconds": "1"}),
        encode({**GOOD, "error": 1}),
        encode({**GOOD, "answer": None}),
        encode({**GOOD, "answer": "1"}),
        encode({**GOOD, "answer": 5000}),
        encode({**GOOD, "state": 5000}),
        encode({**GOOD, "state": [1]}),
        encode({name: value for name, value in GOOD.items() if name != "state"} | {"state": True}),
        forge_text('{"arrays":[],"tree":' + nest(50_000) + "}"),
    ],
)
def test_a_malformed_header_is_a_refused_answer(pipe: Any, header: bytes) -> None:
    worker, other = pipe
    other.send_bytes(header)
    reply = worker.receive(REQUEST)
    assert (reply.status, reply.body, reply.state) == ("refused", b"", None)


@pytest.mark.parametrize(
    "hello", [b"garbage", encode([1]), encode(1), encode({}), encode({"error": 5}), encode({"ready": 1.5})]
)
def test_a_malformed_greeting_is_a_dead_worker(pipe: Any, hello: bytes) -> None:
    worker, other = pipe
    other.send_bytes(hello)
    with pytest.raises(WorkerDied):
        worker.wait_until_ready()


def test_what_a_worker_says_of_its_start_is_printable(pipe: Any) -> None:
    worker, other = pipe
    other.send_bytes(encode({"error": "\x1b[2Jno\nmodel"}))
    with pytest.raises(WorkerError, match=r"^a worker could not start: *\[2Jno model$"):
        worker.wait_until_ready()


def test_what_a_worker_says_it_is_at_is_checked(pipe: Any) -> None:
    worker, other = pipe
    heard: list[ClientActivity] = []
    with listen(heard.append):
        other.send_bytes(encode({"activity": [7, 2, 4, 9]}))
        assert worker.receive(REQUEST) is None
        for odd in ([1, 2, 3], "1234", [1, 2, 3, -1], [1, 2, 3, True], None):
            other.send_bytes(encode({"activity": odd}))
            reply = worker.receive(REQUEST)
            assert (reply.status, reply.error) == ("refused", "malformed answer: its progress report is malformed")
    assert heard == [ClientActivity(1, 2, 4, 9)], "its numbers, and the client that was asked"


def test_a_frame_longer_than_admitted_is_a_dead_worker(pipe: Any) -> None:
    worker, other = pipe
    other.send_bytes(encode(GOOD))
    other.send_bytes(bytes(2000))
    with pytest.raises(WorkerDied):
        worker.receive(REQUEST)


def test_garbage_from_real_workers_costs_their_clients_only(
    toy: Any, open_toy: Callable[..., Any], monkeypatch: Any
) -> None:
    """One writes no frame of ours, one a header that is none, one stops within a frame."""
    monkeypatch.setattr(workers, "STALL_SECONDS", 1)
    odd = encode({"status": "ok"})
    written = {"1": b"\xff" * 64, "2": len(odd).to_bytes(4, "big") + odd, "3": (500).to_bytes(4, "big") + b"half"}
    faults = {"1": {client: f"write {data.hex()}" for client, data in written.items()}}
    clients = Clients(open_toy(2, faults=faults), toy.build().operations, range(6), round_number=1, seed=7, heads={})
    message = Message(weights={"w": np.zeros(8, np.float32)}, control={"step": 0})
    clients.call("drift", dict.fromkeys(range(6), message))
    assert {client: failure.reason for client, failure in clients.failed.items()} == {
        1: "dead",
        2: "refused",
        3: "dead",
    }
    assert set(clients.heads) == {0, 4, 5}


@pytest.mark.parametrize(
    ("backend", "options", "says"),
    [
        ("in-process", {"num_gpus": 1}, "the backend 'in-process' takes no federation.options, got 'num_gpus'"),
        ("flower", {"wiat": 5}, "unknown key 'federation.options.wiat': did you mean 'wait'"),
        ("flower", {"wait": "long"}, "federation.options.wait: "),
        ("flower", {"wait": -1}, "federation.options.wait: "),
        ("flower", {"nodes": {"a": [1]}}, "federation.options.nodes"),
        ("in-process", {"workers": 2}, "federation.options.workers is no option of a backend: see federation.workers"),
        ("in-process", {"recipe": 2}, "federation.options.recipe is no option of a backend: leave it out"),
    ],
)
def test_options_that_a_backend_does_not_know_are_one_sentence(
    backend: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(OptionError) as refused:
        load_config({**SMALL_CONFIG, "federation": {"backend": backend, "options": options}})
    assert str(refused.value).startswith(says)


def test_options_become_the_keywords_of_a_backend(monkeypatch: Any) -> None:
    assert load_options("flower", {"wait": 5, "nodes": {"7": [0, 1]}}) == {"wait": 5.0, "nodes": {7: (0, 1)}}
    assert load_options("in-process", {}) == {}

    def opener(recipe: Any, *, colour: str = "red", **common: Any) -> Any:
        return None

    monkeypatch.setitem(BACKENDS._entries, "test-any", opener)
    assert load_options("test-any", {"shape": 1}) == {"shape": 1}
