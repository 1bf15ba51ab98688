"""A Flower deployment: a SuperLink, and a SuperNode on every client's machine.

The server loop runs inside Flower's ServerApp, which provides its grid to this backend. On a client's machine the ClientApp is
a thin proxy to the resident worker (`resident.py`), which keeps model, tasks and states: only messages are sent, never states.

The server asks every node which clients it runs, and the replies are only claims. Flower's node key proves that a reply comes
from a node that the server's owner has registered, not that this node is the client that it claims to be. Two nodes that claim
the same client therefore stop the run, unless `federation.options.nodes` assigns clients to nodes by number.

The same app runs in Flower's simulation (`flwr run` without a deployment). A simulated node stands for the clients whose number
modulo `num-partitions` is its `partition-id`. It keeps nothing, so states are sent with requests.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from fedagentgym.base.encoding import digest
from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, join_names
from fedagentgym.base.imports import require
from fedagentgym.base.process import get_logger
from fedagentgym.federation.backends import Backend
from fedagentgym.federation.backends.flower_wire import (
    QUERY,
    answer_content,
    encode_request,
    make_record,
    read_record,
    send_and_receive,
)
from fedagentgym.federation.backends.resident import NodeConfig, forward_request
from fedagentgym.federation.exchange import (
    MAX_CLIENTS,
    Application,
    ApplicationSpec,
    Reply,
    Request,
    StateName,
    apply_deadline,
    clean_text,
    perform,
)
from fedagentgym.federation.states import StateStore

log = get_logger(__name__)
GRACE_SECONDS = 10.0
"""The time to wait for the replies of other nodes when every client has a node, since they may claim the same clients."""
_POLL_SECONDS = 0.2
_MAX_CLAIM_LENGTH = 1 << 20


class Claim(NamedTuple):
    """The clients for which a node stands: those it names or, if it is simulated, every `partitions`-th from `clients[0]` on."""

    clients: tuple[int, ...]
    partitions: int = 0

    def choose(self, clients: Iterable[int]) -> list[int]:
        """The clients among the given ones for which the node stands."""
        if self.partitions:
            return [client for client in clients if client % self.partitions == self.clients[0]]
        return sorted(set(clients) & set(self.clients))


def make_claim(clients: Iterable[int], partitions: int = 0) -> Any:
    """The record in which a node names its clients, or a simulated node its partition."""
    parts = {"clients": ",".join(map(str, clients)).encode("ascii")}
    return make_record({**parts, "partitions": str(partitions).encode("ascii")} if partitions else parts)


def read_claim(content: Any) -> Claim:
    """The claim of a node's record; `DataError` if it names no clients."""
    claimed = read_record(content, ("clients",), ("partitions",))
    claim = claimed["clients"]
    numbers = claim.split(b",") if len(claim) <= _MAX_CLAIM_LENGTH else []
    if not numbers or not all(map(_is_client, [*numbers, claimed.get("partitions", b"0")])):
        raise DataError("it does not name its clients")
    return Claim(tuple(map(int, numbers)), int(claimed.get("partitions", b"0")))


def _is_client(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 10 and int(text) < MAX_CLIENTS


class FoundNodes(NamedTuple):
    """The node of every client, and the nodes that are simulated."""

    of_client: dict[int, int]
    simulated: frozenset[int]


def find_nodes(
    grid: Any, clients: Sequence[int], wait: float, assigned: Mapping[int, Sequence[int]] | None = None
) -> FoundNodes:
    """Query nodes until every client has a node, and return these nodes; raise an error after `wait` seconds."""
    search = _NodeSearch(grid, frozenset(clients), assigned)
    deadline = time.monotonic() + wait
    search.ask()
    while missing := sorted(search.clients - set(search.found)):
        if time.monotonic() > deadline:
            unknown = join_names(map(str, sorted(search.unknown)))
            raise FedAgentGymError(
                f"no SuperNode for the clients {join_names(map(str, missing))} after {wait:g} s: start one for each"
                ' (--node-config \'clients="0,1" workplace="/a/folder"\'; where clients hold their tasks, tasks="/a/client.yaml"'
                " in place of clients)"
                + (f"; other nodes stand for the clients {unknown}, which this run does not have" if unknown else "")
            )
        search.read_answers()
        search.ask()
        time.sleep(_POLL_SECONDS)
    grace = time.monotonic() + min(wait, GRACE_SECONDS)
    while assigned is None and search.pending and time.monotonic() < grace:
        search.read_answers()
        time.sleep(_POLL_SECONDS)
    return FoundNodes(search.found, frozenset(search.simulated))


class _NodeSearch:
    """The queries sent and the replies received."""

    def __init__(self, grid: Any, clients: frozenset[int], assigned: Mapping[int, Sequence[int]] | None) -> None:
        self.clients = clients
        self.found: dict[int, int] = {}
        self.simulated: set[int] = set()
        self.pending: dict[str, int] = {}
        self.unknown: set[int] = set()
        """Clients that nodes named but this run does not have."""
        self._grid, self._assigned = grid, assigned
        self._asked: set[int] = set()

    def ask(self) -> None:
        """Query the new nodes."""
        fresh = [node for node in self._grid.get_node_ids() if node not in self._asked]
        self._asked.update(fresh)
        flower = require("flwr.app", "flower")
        queries = [
            flower.Message(content=make_record({"clients": b"?"}), dst_node_id=node, message_type=QUERY)
            for node in fresh
        ]
        names = self._grid.push_messages(queries) if fresh else []
        self.pending.update(zip(names, fresh, strict=True))

    def read_answers(self) -> None:
        """Read the replies; a node that replies with an error is queried again, one with an invalid reply is ignored."""
        for answer in self._grid.pull_messages(list(self.pending)) if self.pending else []:
            node = self.pending.pop(answer.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if answer.has_error():
                self._asked.discard(node)
                continue
            try:
                if answer.metadata.src_node_id != node:
                    raise DataError("its answer came from another node")
                claimed = read_claim(answer.content)
            except Exception as error:  # Flower may raise any error for a forged record
                log.warning("node %d is ignored: %s", node, clean_text(error, 200))
                continue
            if claimed.partitions:
                self.simulated.add(node)
            else:
                self.unknown |= set(claimed.clients) - self.clients
            for client in claimed.choose(self.clients):
                if self._assigned is not None and client not in self._assigned.get(node, ()):
                    log.warning("node %d claims client %d, against federation.options.nodes", node, client)
                elif (other := self.found.setdefault(client, node)) != node:
                    raise FedAgentGymError(
                        f"the nodes {other} and {node} both claim client {client}: stop one of them, or write in"
                        f" federation.options.nodes which is right, as {{{node}: [{client}]}}"
                    )


WAIT_SECONDS = 300.0
_active_grids: list[Any] = []


@contextlib.contextmanager
def use_grid(grid: Any) -> Iterator[None]:
    """Let `open_backend` use the grid of a ServerApp."""
    _active_grids.append(grid)
    try:
        yield
    finally:
        _active_grids.pop()


def open_backend(
    recipe: ApplicationSpec,
    *,
    folder: Path | None = None,
    workers: int = 0,
    application: Application[Any] | None = None,
    device_per_worker: Sequence[str] = (),
    wait: Annotated[float, Field(gt=0.0, description="seconds to wait for a node of every client")] = WAIT_SECONDS,
    nodes: Annotated[
        Mapping[int, tuple[int, ...]] | None,
        Field(description="the clients of each node, by node number; null: every registered node says which it has"),
    ] = None,
) -> Backend:
    """The backend of a ServerApp. `wait` is how long it waits for all clients.

    `nodes` gives the clients of each of Flower's nodes, by node number; without it the claim of every registered node is
    accepted.
    """
    if not _active_grids:
        raise OptionError(
            "backend 'flower' works inside a Flower ServerApp: write the app with `fedagentgym flower init` and start it with"
            " `flwr run`"
        )
    grid, clients = _active_grids[-1], list(getattr(application, "client_ids", lambda: range(1))())
    return FlowerNodes(recipe, grid, find_nodes(grid, clients, wait, nodes), folder)


class FlowerNodes(StateStore):
    """Runs clients on Flower's nodes. The store keeps the states of simulated nodes. A client's machine keeps its own states, and
    each request says which of them belong to rounds that are kept."""

    def __init__(self, recipe: ApplicationSpec, grid: Any, nodes: FoundNodes, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._recipe, self._grid, self._nodes = recipe.plain(), grid, nodes
        self._kept: dict[int, set[StateName]] = {}

    def prune(self, rounds: Iterable[Mapping[int, StateName]]) -> None:
        rounds = list(rounds)
        super().prune(rounds)
        self._kept = {}
        for heads in rounds:
            for client, name in heads.items():
                self._kept.setdefault(client, set()).add(name)

    def run(self, requests: Sequence[Request], deadline: float | None) -> list[Reply]:
        sent, contents = [], []
        for asked in requests:
            node = self._nodes.of_client[asked.client]
            kept = () if node in self._nodes.simulated else tuple(sorted(self._kept.get(asked.client, ())))
            sent.append((node, replace(asked, kept=kept)))
        for node, request in sent:
            state = self.get(request.client, request.base) if node in self._nodes.simulated else None
            contents.append(encode_request(request, self._recipe, state))
        replies = [apply_deadline(reply, deadline) for reply in send_and_receive(self._grid, sent, contents, deadline)]
        for (node, request), reply in zip(sent, replies, strict=True):
            if node in self._nodes.simulated:
                self.put(request.client, request.name, reply.state)
        return replies

    def close(self) -> None:
        """Close nothing: the grid belongs to the ServerApp."""


def client_app(trusted: Sequence[str] = ()) -> Any:
    """The ClientApp: a thin proxy. Flower starts a process for every message; state that must persist is in the resident worker.

    `trusted` are the applications for which the app is made; the owner of the machine may add others by `trust`. The text of an
    error may quote paths and tasks, so it is written to the node's own log and not sent to the server.
    """
    flower = require("flwr.app", "flower")
    app = require("flwr.clientapp", "flower").ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def list_clients(message: Any, context: Any) -> Any:
        node = context.node_config
        try:
            simulated = is_simulated(node)
            clients = (int(node["partition-id"]),) if simulated else NodeConfig.from_node_config(node).clients
            claim = make_claim(clients, int(node["num-partitions"]) if simulated else 0)
        except FedAgentGymError as error:
            log.error("this node stands for no client: %s", error)
            claim = make_claim(())
        return flower.Message(content=claim, reply_to=message)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        def forward(request: Request, recipe: ApplicationSpec, state: bytes | None) -> Reply:
            if is_simulated(context.node_config):
                return perform_simulated(request, recipe, state)
            try:
                place = NodeConfig.from_node_config(context.node_config)
                return forward_request(replace(place, trust=(*place.trust, *trusted)), request, recipe.plain())
            except Exception:
                log.exception("request %s of client %d", request.name, request.client)
                return Reply(request.client, "error", error="its node could not serve the request: see its log")

        return flower.Message(content=answer_content(message.content, forward), reply_to=message)

    return app


# ---- simulated nodes ------------------------------------------------------------------------------------------------


def is_simulated(node: Mapping[str, Any]) -> bool:
    """Return whether this ClientApp runs in Flower's simulation engine, in a process of Ray, on a node without a workplace."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and "partition-id" in node and not node.get("workplace")


_applications: dict[str, Application[Any]] = {}


def perform_simulated(request: Request, recipe: ApplicationSpec, state: bytes | None) -> Reply:
    """Serve a request for any client; the application is built once per process."""
    from fedagentgym.federation.backends.workers import ONE_THREAD_VARIABLES

    os.environ.update(ONE_THREAD_VARIABLES)
    name = digest(recipe.plain())
    if name not in _applications:
        _applications.clear()
        _applications[name] = recipe.build()
    return perform(_applications[name], request, state)
