"""Checks of aggregation rules and of backends."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedagentgym.base.settings import NamedSettings
from fedagentgym.federation.aggregation import (
    AGGREGATION_RULES,
    Aggregation,
    AggregationRule,
    Mean,
    aggregate,
    compute_weights,
)
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.backends import BACKENDS, Backend
from fedagentgym.federation.backends.in_process import open_backend
from fedagentgym.federation.exchange import ApplicationSpec, ClientContext, Operation, Reply, Request, StateName
from fedagentgym.federation.message import Array, ArrayForm, Form, Message
from fedagentgym.testing.conditions import errors_as_failures, global_generators_untouched

SHAPES: Mapping[str, tuple[int, ...]] = {"bias": (3,), "scale": (), "weight": (4, 5)}
EXAMPLES = (3.0, 1.0, 8.0, 2.0)
RULE_DUTY = "a rule has begin(state), which returns an object with add(update, weight) and finish()"


class _Holder(NamedSettings):
    """A configuration that holds one rule."""

    name: str = "holder"
    aggregation: Aggregation = Mean()


def check_aggregation(name: str, **settings: object) -> None:
    """Check a registered aggregation rule in two rounds, on made-up parameters of four clients or as many as the rule needs.

    The rule must keep names, dtypes and shapes, give finite parameters, and give the same result for the same updates. It must
    not change its inputs or use the global random generators. It must use weights if and only if it declares `uses_weights`. The
    state that it returns must survive a commit, and its settings must survive a configuration file.

    Args:
        name: The name under which it is registered.
        **settings: Settings of the rule.

    Raises:
        AssertionError: If the check fails; the message is one sentence.

    Examples:
        >>> from fedagentgym.testing import check_aggregation
        >>> check_aggregation("fedadam", beta1=0.8)
    """
    with errors_as_failures(RULE_DUTY, partial(AGGREGATION_RULES.get, name), who=f"the aggregation rule {name!r}"):
        found = AGGREGATION_RULES.get(name)
        assert isinstance(found, type) and issubclass(found, AggregationRule), (
            f"{name} is not a class derived from fedagentgym.federation.AggregationRule"
        )
        rule = _load({"name": name, **settings})
        assert _load(rule.model_dump(mode="json")) == rule, f"the settings of {name} do not survive a file"
        examples = [EXAMPLES[client % len(EXAMPLES)] for client in range(max(len(EXAMPLES), rule.least_updates))]
        weights = compute_weights(rule, list(examples))
        assert len(weights) == len(examples), f"{name} gives {len(weights)} weights for {len(examples)} clients"
        assert all(np.isfinite(weight) and weight >= 0 for weight in weights), f"{name} gives a weight that is not >= 0"
        state = ServerState(_make_parameters(0), memory={"kept": 1})
        with global_generators_untouched(name):
            for number in (1, 2):
                state = _check_round(name, rule, state, number, weights)
            # the same updates with equal and with unequal weights
            begun, losses = ServerState(_make_parameters(0)), [0.5] * len(examples)
            updates = [_make_parameters(1000 + client) for client in range(len(examples))]
            results = {
                aggregate(rule, begun, zip(updates, weights, strict=True), losses).digest
                for weights in ([1.0] * len(examples), examples, examples[::-1])
            }
        if rule.uses_weights:
            assert len(results) > 1, f"{name} says uses_weights, but equal and unequal weights give the same result"
        else:
            assert len(results) == 1, f"{name} depends on the clients' weights, but does not say uses_weights = True"


def _load(plain: Mapping[str, object]) -> AggregationRule:
    return _Holder.load({"aggregation": dict(plain)}).aggregation


def _check_round(
    name: str, rule: AggregationRule, state: ServerState, number: int, weights: list[float]
) -> ServerState:
    updates = [_make_parameters(100 * number + client) for client in range(len(weights))]
    losses = [1.0 / (1.0 + client) for client in range(len(weights))]
    before = [_to_bytes(parameters) for parameters in (state.parameters, *updates)]
    after = aggregate(rule, state, zip(updates, weights, strict=True), losses)
    assert [_to_bytes(parameters) for parameters in (state.parameters, *updates)] == before, (
        f"{name} changes the parameters that it is given"
    )
    assert isinstance(after, ServerState), f"{name} gives a {type(after).__name__} in place of a ServerState"
    for key, value in state.parameters.items():
        assert key in after.parameters, f"{name} loses the parameter {key!r}"
        given = after.parameters[key]
        assert given.dtype == value.dtype, f"{name} gives {key!r} as {given.dtype}, the model has {value.dtype}"
        assert given.shape == value.shape, f"{name} gives {key!r} the shape {given.shape}, the model has {value.shape}"
        assert np.isfinite(given).all(), f"{name} gives parameters that are not finite"
    assert after.memory == state.memory, f"{name} loses what the method remembers in state.memory"
    again = aggregate(rule, state, zip(updates, weights, strict=True), losses)
    assert again.digest == after.digest, f"{name} gives another state for the same updates"
    stored = ServerState.from_message(Message.decode(after.message.encoded))
    following = [aggregate(rule, begun, zip(updates, weights, strict=True), losses).digest for begun in (after, stored)]
    assert following[0] == following[1], f"{name} continues differently from a state that was stored and read again"
    return after


def _make_parameters(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: np.asarray(random.normal(size=shape), dtype=np.float32) for name, shape in SHAPES.items()}


def _to_bytes(parameters: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in parameters.items()}


APPLICATION = "fedagentgym.testing.federation:build"
CLIENTS = (1, 2, 5)
FORM = Form({"total": ArrayForm("float64", (3,))}, text=64)


class Summing:
    """An application whose clients sum their random draws, and raise or sleep on request."""

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
    """Return the application. Worker processes build it by name."""
    return Summing()


def check_backend(name: str, *, workers: int = 0, **options: object) -> None:
    """Check a registered backend.

    Its replies must have the order of the requests, and equal those of the sequential backend. A request must start from the
    state that it names. For a client that fails or is late there must be a reply without a new state. Committed states must be
    kept.

    Args:
        name: The name under which it is registered.
        workers: Number of workers with which it is opened.
        **options: Options of the backend, as in `federation.options`.

    Raises:
        AssertionError: If the check fails; the message is one sentence.
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
            reference = open_backend(ApplicationSpec(APPLICATION), application=build())
            first, second, third = (StateName(1, call) for call in range(3))
            _same(name, backend, reference, _requests(first, None), "the first call of a client")
            _same(name, backend, reference, _requests(second, first), "a call that starts from the state of another")
            _same(name, backend, reference, _requests(second, first), "a call that is repeated")
            for wanted, status in (("raise", "error"), ("sleep", "timeout")):
                requests = _requests(third, second, wanted)[:1]
                (reply,) = _answers(name, backend, requests, deadline=1.0 if wanted == "sleep" else None)
                assert reply.status == status, (
                    f"{name}: a client that is to {wanted} is {reply.status!r} instead of {status!r}"
                )
                assert reply.state is None, f"{name}: the reply of a client that is to {wanted} names a new state"
            _same(name, backend, reference, _requests(third, second), "a call after one that failed")
            for each in (backend, reference):
                each.commit(dict.fromkeys(CLIENTS, third))
                each.prune([dict.fromkeys(CLIENTS, third)])
            _same(
                name, backend, reference, _requests(StateName(2, 0), third), "a call that starts from a committed state"
            )
        finally:
            backend.close()


def _requests(made: StateName, base: StateName | None, wanted: str = "") -> list[Request]:
    message = Message(control={"do": wanted}).encoded
    return [
        Request(client, made, "sum", message, base, 7, client, FORM.limits.total, FORM.limits.total)
        for client in CLIENTS
    ]


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
