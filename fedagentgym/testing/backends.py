"""`check_backend`: the requirements of a backend, tested with an application of plain numpy."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedagentgym.federation.backends import BACKENDS
from fedagentgym.federation.backends.in_process import open_backend
from fedagentgym.federation.clients import Backend
from fedagentgym.federation.exchange import Reply, Request, StateName
from fedagentgym.federation.message import ArrayForm, Form, Message
from fedagentgym.federation.operation import ApplicationSpec, ClientContext, Operation
from fedagentgym.testing.conditions import errors_as_failures

APPLICATION = "fedagentgym.testing.backends:build"
CLIENTS = (1, 2, 5)
FORM = Form({"weights/total": ArrayForm("float64", (3,))}, text=64)


class Summing:
    """Every client sums its draws; on request it raises or sleeps."""

    def __init__(self) -> None:
        self.operations = {"sum": Operation(self.sum, request=Form(text=64), reply=FORM, state=FORM)}

    def client_ids(self) -> tuple[int, ...]:
        return CLIENTS

    def resources(self, client: int) -> float:
        return float(client)

    def sum(self, state: Message, message: Message, client: ClientContext[float]) -> tuple[Message, Message]:
        wanted = message.control["do"]
        if wanted == "raise":
            raise RuntimeError("as asked")
        if wanted == "sleep":
            time.sleep(2.0)
        so_far = state.weights.get("total", np.full(3, client.resources))
        total = Message(weights={"total": np.asarray(so_far) + client.stream("sum").normal(size=3)})
        return total, total


def build() -> Summing:
    """The application; worker processes build it by name."""
    return Summing()


def check_backend(name: str, *, workers: int = 0, **options: object) -> None:
    """Check a registered backend, opened with this many workers and the options of `federation.options`.

    Its answers must come in the order of the requests and equal those of the sequential backend, a request must start from the
    state that it names, a client that fails or is late must become a reply that leaves its state as it was, and committed
    states must stay.
    """
    with tempfile.TemporaryDirectory() as scratch, errors_as_failures():
        backend: Backend = BACKENDS.get(name)(
            ApplicationSpec(APPLICATION),
            folder=Path(scratch) / "states",
            workers=workers,
            application=build(),
            device_per_worker=(),
            **options,
        )
        try:
            _check(name, backend, open_backend(ApplicationSpec(APPLICATION), application=build()))
        finally:
            backend.close()


def _check(name: str, backend: Backend, reference: Backend) -> None:
    first, second, third = (StateName(1, call) for call in range(3))
    _same(name, backend, reference, _requests(first, None), "the first call of a client")
    _same(name, backend, reference, _requests(second, first), "a call that starts from the state of another")
    _same(name, backend, reference, _requests(second, first), "a call that is repeated")
    for wanted, status in (("raise", "error"), ("sleep", "timeout")):
        requests = _requests(third, second, wanted)[:1]
        (reply,) = _answers(name, backend, requests, deadline=1.0 if wanted == "sleep" else None)
        assert reply.status == status, f"{name}: a client that is to {wanted} is {reply.status!r} instead of {status!r}"
        assert reply.state is None, f"{name}: a client that is to {wanted} leaves a new state"
    _same(name, backend, reference, _requests(third, second), "a call after one that failed")
    for each in (backend, reference):
        each.commit(dict.fromkeys(CLIENTS, third))
        each.prune(dict.fromkeys(CLIENTS, third))
    _same(name, backend, reference, _requests(StateName(2, 0), third), "a call that starts from a committed state")


def _requests(made: StateName, base: StateName | None, wanted: str = "") -> list[Request]:
    message = Message(control={"do": wanted}).encoded
    return [Request(client, made, "sum", message, base, 7, client, FORM.limit, FORM.limit) for client in CLIENTS]


def _answers(name: str, backend: Backend, requests: Sequence[Request], deadline: float | None = None) -> list[Reply]:
    replies = list(backend.run(requests, deadline))
    asked, found = [request.client for request in requests], [reply.client for reply in replies]
    assert found == asked, f"{name} answers for clients {found}, asked were {asked}"
    return replies


def _same(name: str, backend: Backend, reference: Backend, requests: Sequence[Request], what: str) -> None:
    expected = _answers("in-process", reference, requests)
    for found, right in zip(_answers(name, backend, requests), expected, strict=True):
        assert found.status == "ok", f"{name}: {what} fails: {found.error}"
        assert found.body == right.body, f"{name}: {what} gives other bytes than in one process"
