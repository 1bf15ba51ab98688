"""A Flower deployment: a SuperLink, and a SuperNode on every client's machine.

The server loop runs inside Flower's ServerApp, which provides its grid to this backend. On a client's machine the ClientApp is
a thin proxy to the resident worker (`resident.py`), which keeps model, tasks and states: only messages are sent, never states.

Which node runs which client: the nodes are queried, and their replies are claims. Flower's node key proves that a reply comes
from a node that the server's owner has registered, not that this node is the client that it claims to be. Two nodes that claim
one client therefore stop the run; `federation.options.nodes`, which assigns clients to nodes by number, takes precedence.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, join_names
from fedagentgym.base.imports import require
from fedagentgym.base.process import get_logger
from fedagentgym.federation.backends.flower_wire import (
    QUERY,
    answer_content,
    encode_request,
    make_record,
    read_record,
    send_and_receive,
)
from fedagentgym.federation.backends.resident import NodeConfig, forward_request
from fedagentgym.federation.clients import Backend
from fedagentgym.federation.exchange import (
    MOST_CLIENTS,
    Application,
    ApplicationSpec,
    Reply,
    Request,
    StateName,
    apply_deadline,
    clean_text,
)

log = get_logger(__name__)
GRACE_SECONDS = 10.0
"""How long to wait for the other nodes when every client has a node: one of them may claim the same client."""
_POLL_SECONDS = 0.2
_LONGEST_CLAIM = 1 << 20


def make_claim(clients: Iterable[int]) -> Any:
    """The record in which a node names its clients."""
    return make_record({"clients": ",".join(map(str, clients)).encode("ascii")})


def read_claim(content: Any) -> tuple[int, ...]:
    """The clients of a node's record; `DataError` if it names none."""
    claimed = read_record(content, ("clients",))["clients"]
    parts = claimed.split(b",") if len(claimed) <= _LONGEST_CLAIM else []
    if not parts or not all(part.isdigit() and len(part) <= 10 and int(part) < MOST_CLIENTS for part in parts):
        raise DataError("it does not name its clients")
    return tuple(int(part) for part in parts)


def find_nodes(
    grid: Any, clients: Sequence[int], wait: float, assigned: Mapping[int, Sequence[int]] | None = None
) -> dict[int, int]:
    """The node of every client; queries until all are found."""
    search = _NodeSearch(grid, frozenset(clients), assigned)
    deadline = time.monotonic() + wait
    search.ask()
    while missing := sorted(search.clients - set(search.found)):
        if time.monotonic() > deadline:
            raise FedAgentGymError(
                f"no SuperNode for the clients {join_names(map(str, missing))} after {wait:g} s: start one for each"
                ' (--node-config \'clients="0,1" workplace="/a/folder"\')'
            )
        search.read_answers()
        search.ask()
        time.sleep(_POLL_SECONDS)
    grace = time.monotonic() + min(wait, GRACE_SECONDS)
    while assigned is None and search.pending and time.monotonic() < grace:
        search.read_answers()
        time.sleep(_POLL_SECONDS)
    return search.found


class _NodeSearch:
    """The queries sent and the replies received."""

    def __init__(self, grid: Any, clients: frozenset[int], assigned: Mapping[int, Sequence[int]] | None) -> None:
        self.clients = clients
        self.found: dict[int, int] = {}
        self.pending: dict[str, int] = {}
        self._grid, self._assigned = grid, assigned
        self._asked: set[int] = set()

    def ask(self) -> None:
        """Query the new nodes."""
        fresh = [node for node in self._grid.get_node_ids() if node not in self._asked]
        self._asked.update(fresh)
        names = self._grid.push_messages([_make_query(node) for node in fresh]) if fresh else []
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
            self._note(node, claimed)

    def _note(self, node: int, claimed: Iterable[int]) -> None:
        for client in sorted(self.clients & set(claimed)):
            if self._assigned is not None and client not in self._assigned.get(node, ()):
                log.warning("node %d claims client %d, against federation.options.nodes", node, client)
                continue
            if (other := self.found.setdefault(client, node)) != node:
                raise FedAgentGymError(
                    f"the nodes {other} and {node} both claim client {client}: stop one of them, or write in"
                    f" federation.options.nodes which is right, as {{{node}: [{client}]}}"
                )


def _make_query(node: int) -> Any:
    flower = require("flwr.app", "flower")
    return flower.Message(content=make_record({"clients": b"?"}), dst_node_id=node, message_type=QUERY)


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
    wait: Annotated[float, Field(gt=0.0)] = WAIT_SECONDS,
    nodes: Mapping[int, tuple[int, ...]] | None = None,
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
    clients = list(getattr(application, "client_ids", lambda: range(1))())
    return FlowerDeployment(recipe, _active_grids[-1], clients, wait, nodes)


class FlowerDeployment:
    """Clients on machines of their own."""

    def __init__(
        self,
        recipe: ApplicationSpec,
        grid: Any,
        clients: Sequence[int],
        wait: float,
        nodes: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self._recipe, self._grid = recipe.plain(), grid
        self._nodes = find_nodes(grid, clients, wait, nodes)

    def run(self, requests: Sequence[Request], deadline: float | None) -> list[Reply]:
        contents = [encode_request(request, self._recipe, None) for request in requests]
        sent = [(self._nodes[request.client], request) for request in requests]
        return [apply_deadline(reply, deadline) for reply in send_and_receive(self._grid, sent, contents, deadline)]

    def commit(self, heads: Mapping[int, StateName]) -> None:
        """States are durable on the clients' machines before their replies are sent."""

    def prune(self, heads: Mapping[int, StateName]) -> None:
        """A client's machine drops by itself the states from which no later request starts."""

    def close(self) -> None:
        """The grid belongs to the ServerApp."""


def client_app(trusted: Sequence[str] = ()) -> Any:
    """The ClientApp: a thin proxy. Flower starts a process for every message; state that must persist is in the resident worker.

    `trusted` are the applications for which the app is made; the owner of the machine may add others by `trust`.
    """
    flower = require("flwr.app", "flower")
    app = require("flwr.clientapp", "flower").ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def list_clients(message: Any, context: Any) -> Any:
        clients = NodeConfig.from_node_config(context.node_config).clients
        return flower.Message(content=make_claim(clients), reply_to=message)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        def forward(request: Request, recipe: ApplicationSpec, state: bytes | None) -> Reply:
            place = NodeConfig.from_node_config(context.node_config)
            return forward_request(replace(place, trust=(*place.trust, *trusted)), request, recipe.plain())

        return flower.Message(content=answer_content(message.content, forward), reply_to=message)

    return app
