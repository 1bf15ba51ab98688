from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.base.imports import load_plugins
from fedagentgym.federation.algorithm import Clients, Failure, QuorumError, resolve_quorum
from fedagentgym.federation.backends import BACKENDS
from fedagentgym.federation.backends.in_process import open_backend
from fedagentgym.federation.commits import Commit
from fedagentgym.federation.exchange import ApplicationSpec, Request, StateName
from fedagentgym.federation.message import Message
from tests.federation.conftest import TOY, TOY_FILE


def clients_of(toy: ModuleType, backend: Any, **options: Any) -> Clients:
    arguments = {"round_number": 1, "seed": 7, "heads": {}, **options}
    return Clients(backend, toy.build().operations, range(6), **arguments)


def drift(step: int = 0) -> Message:
    return Message(weights={"w": np.zeros(8, np.float32)}, control={"step": step})


@pytest.mark.parametrize("workers", [0, 2])
def test_one_answer_per_request_in_the_order_of_the_numbers(toy: ModuleType, open_toy: Any, workers: int) -> None:
    clients = clients_of(toy, open_toy(workers))
    answers = clients.call("drift", {4: drift(), 1: drift(), 3: drift()})
    assert list(answers) == [1, 3, 4]
    assert {k: a.control["examples"] for k, a in answers.items()} == {1: 11, 3: 13, 4: 14}
    assert clients.heads == {k: StateName(1, 0) for k in (1, 3, 4)}
    assert clients.meter.counts["up"]["weights"] == 3 * 32


def test_a_pool_gives_the_bits_of_the_sequential_form(run_toy: Callable[..., Commit], tmp_path: Path) -> None:
    runs = [
        run_toy(tmp_path / str(workers), workers=workers, calls=2, per_round=3, clients=7, rounds=3)
        for workers in (0, 1, 2)
    ]
    assert len({run.state.digest for run in runs}) == 1
    assert runs[0].heads == runs[2].heads
    states = [sorted(path.read_bytes() for path in (tmp_path / str(w) / "states").rglob("*.state")) for w in (0, 2)]
    assert states[0] == states[1]


def test_two_calls_a_round_carry_the_state_from_one_to_the_next(toy: ModuleType, open_toy: Any) -> None:
    backend = open_toy()
    clients = clients_of(toy, backend)
    first = clients.call("drift", {2: drift(0)})[2].weights["w"]
    second = clients.call("drift", {2: drift(1)})[2].weights["w"]
    state = Message.decode(backend.get(2, StateName(1, 1)))
    assert state.control["count"] == 2
    assert np.array_equal(state.weights["sum"], first + second)


def test_a_request_names_its_state_so_a_repeated_call_gives_the_same_answer(toy: ModuleType, open_toy: Any) -> None:
    backend = open_toy()
    clients = clients_of(toy, backend)
    clients.call("drift", {2: drift(0)})
    declared = toy.build().operations["drift"]
    limits = declared.reply.limits.total, declared.state.limits.total
    request = Request(2, StateName(1, 1), "drift", drift(1).encoded, StateName(1, 0), 7, 2, *limits)
    first, second = (next(iter(backend.run([request], None))) for _ in range(2))
    assert (first.body, first.state) == (second.body, second.state)
    assert Request.from_header(request.to_header(), request.message) == request


@pytest.mark.parametrize(
    ("kind", "reason", "says"),
    [
        ("raise", "error", "RuntimeError: this client is broken"),
        ("nan", "refused", "not finite"),
        ("shape", "refused", "shape"),
        ("huge", "refused", "at most"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_faulty_client_becomes_a_failure_and_keeps_its_old_state(
    toy: ModuleType, open_toy: Any, kind: str, reason: str, says: str, workers: int
) -> None:
    clients = clients_of(toy, open_toy(workers, faults={"1": {"2": kind}}))
    answers = clients.call("drift", {1: drift(), 2: drift(), 3: drift()})
    failure = clients.failed[2]
    assert (failure.client, failure.reason) == (2, reason)
    assert says in failure.message
    assert set(answers) == {1, 3}
    assert set(clients.heads) == {1, 3}
    assert clients.failures[0]["operation"] == "drift"


def test_a_late_answer_is_thrown_away(toy: ModuleType, open_toy: Any) -> None:
    clients = clients_of(toy, open_toy(0, faults={"1": {"2": "late"}}), deadline=2.0)
    clients.call("drift", {1: drift(), 2: drift()})
    assert clients.failed[2].reason == "timeout"
    assert set(clients.heads) == {1}


def test_a_hanging_client_costs_its_worker_and_no_other_client(toy: ModuleType, open_toy: Any) -> None:
    clients = clients_of(toy, open_toy(2, faults={"1": {"2": "hang"}}), deadline=3.0)
    answers = clients.call("drift", {k: drift() for k in range(6)})
    assert clients.failed[2].reason == "timeout"
    assert len(answers) == 5
    assert len(clients.call("drift", {k: drift(1) for k in (0, 1)})) == 2


def test_a_dead_worker_is_replaced_and_its_call_tried_once_more(toy: ModuleType, open_toy: Any, tmp_path: Path) -> None:
    faults = {"1": {"2": "die once", "4": "die"}}
    clients = clients_of(toy, _open(tmp_path, faults))
    answers = clients.call("drift", {k: drift() for k in range(6)})
    calm = clients_of(toy, open_toy(0)).call("drift", {2: drift()})
    assert clients.failed[4].reason == "dead"
    assert "exit status 3" in clients.failed[4].message
    assert np.array_equal(answers[2].weights["w"], calm[2].weights["w"])
    assert len(answers) == 5
    clients.backend.close()


def _open(folder: Path, faults: dict[str, Any]) -> Any:
    recipe = ApplicationSpec(f"{TOY}:build", {"faults": faults, "folder": str(folder)}, (TOY_FILE,))
    return open_backend(recipe, workers=2)


def test_quorum(toy: ModuleType, open_toy: Any) -> None:
    faults = {"1": {"0": "raise", "1": "nan", "2": "raise"}}
    messages = {k: drift() for k in range(4)}
    with pytest.raises(QuorumError, match=r"1 of 4 clients answered 'drift', the quorum is 2"):
        clients_of(toy, open_toy(faults=faults), quorum=0.5).call("drift", messages)
    clients = clients_of(toy, open_toy(faults=faults), quorum=0.25)
    assert len(clients.call("drift", messages)) == 1
    with pytest.raises(QuorumError):
        clients.refuse([Failure(3, "refused", "too far")])
    assert [resolve_quorum(q, 10) for q in (None, 0.5, 0.51, 1.0, 3, 0.0, 99)] == [1, 5, 6, 10, 3, 0, 10]
    for bad in (1.5, -1, True):
        with pytest.raises(FedAgentGymError, match="quorum"):
            resolve_quorum(bad, 4)


def test_bad_calls_are_refused(toy: ModuleType, open_toy: Any) -> None:
    clients = clients_of(toy, open_toy())
    with pytest.raises(DataError, match="no operation 'fly'"):
        clients.call("fly", {1: drift()})
    with pytest.raises(DataError, match="not in this federation"):
        clients.call("drift", {77: drift()})
    with pytest.raises(DataError, match="dtype"):
        clients.call("drift", {1: Message(weights={"w": np.zeros(8)}, control={"step": 0})})
    assert clients.call("drift", {}) == {}


def test_a_worker_that_cannot_start_says_why(recipe: Any, toy: ModuleType) -> None:
    backend = open_backend(recipe("failing"), workers=1)
    with pytest.raises(FedAgentGymError, match="nothing here works"):
        clients_of(toy, backend).call("drift", {1: drift()})
    backend.close()


def test_plugins(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_plugins([str(tmp_path / "absent.py")])
    with pytest.raises(DataError, match="cannot load the plugin"):
        load_plugins(["no_such_module_anywhere"])


def test_clients_forced_to_draw_alike_drift_alike(toy: ModuleType, open_toy: Any) -> None:
    clients = clients_of(toy, open_toy(), streams=dict.fromkeys(range(8), 0))
    answers = clients.call("drift", {1: drift(), 2: drift()})
    assert np.array_equal(answers[1].weights["w"], answers[2].weights["w"])


def test_a_worker_has_one_thread_and_its_device(toy: ModuleType, recipe: Any) -> None:
    backend = open_backend(recipe(), workers=2, device_per_worker=("here", "there"))
    answers = clients_of(toy, backend).call("drift", {k: drift() for k in range(4)})
    pids = {answer.report["pid"] for answer in answers.values()}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    backend.close()


def test_the_backends_have_names() -> None:
    assert set(BACKENDS.names()) >= {"in-process", "flower"}
    assert BACKENDS.get("in-process") is open_backend
