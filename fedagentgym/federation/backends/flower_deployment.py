"""A Flower deployment: a SuperLink, and a SuperNode on every client's machine.

The server loop runs inside Flower's ServerApp, which provides its grid to this backend. On a client's machine the ClientApp is
a thin proxy to the resident worker (`resident.py`), which keeps model, tasks and states: only messages are sent, never states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.extras import require
from fedagentgym.federation.backends.flower_nodes import find_nodes, make_claim
from fedagentgym.federation.backends.flower_wire import answer_content, encode_request, send_and_receive
from fedagentgym.federation.backends.resident import NodeConfig, forward_request
from fedagentgym.federation.clients import Backend
from fedagentgym.federation.exchange import Reply, Request, StateName, apply_deadline
from fedagentgym.federation.operation import Application, ApplicationSpec

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
