"""A Flower deployment: a SuperLink, and a SuperNode on every client's machine.

The server loop runs inside Flower's ServerApp, which lends its grid to this backend. On a client's machine the ClientApp is a
thin proxy to the resident worker (`resident.py`), which keeps model, tasks and states: only messages travel, states do not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedagentgym.base.errors import FedAgentGymError, OptionError, join_names
from fedagentgym.base.extras import require
from fedagentgym.federation.backends.flower_wire import (
    QUERY,
    decode_request,
    encode_reply,
    encode_request,
    make_record,
    read_record,
    send_and_receive,
)
from fedagentgym.federation.backends.resident import NodeConfig, forward_request
from fedagentgym.federation.clients import Backend
from fedagentgym.federation.exchange import Reply, Request, StateName, apply_deadline
from fedagentgym.federation.operation import Application, ApplicationSpec

WAIT_SECONDS = 300.0
_active_grids: list[Any] = []


@contextlib.contextmanager
def use_grid(grid: Any) -> Iterator[None]:
    """Make a ServerApp's grid the one that `open_backend` uses."""
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
    wait: float = WAIT_SECONDS,
) -> Backend:
    """The backend of a ServerApp. `wait` is how long it waits for all clients to be there."""
    if not _active_grids:
        raise OptionError(
            "backend 'flower' works inside a Flower ServerApp: write the app with `fedagentgym flower init` and start it with"
            " `flwr run`"
        )
    clients = list(getattr(application, "client_ids", lambda: range(1))())
    return FlowerDeployment(recipe, _active_grids[-1], clients, wait)


class FlowerDeployment:
    """Clients on machines of their own."""

    def __init__(self, recipe: ApplicationSpec, grid: Any, clients: Sequence[int], wait: float) -> None:
        self._recipe, self._grid = recipe.plain(), grid
        self._nodes = self._find_nodes(clients, wait)

    def run(self, requests: Sequence[Request], deadline: float | None) -> list[Reply]:
        contents = [encode_request(request, self._recipe, None) for request in requests]
        sent = [(self._nodes[request.client], request) for request in requests]
        return [apply_deadline(reply, deadline) for reply in send_and_receive(self._grid, sent, contents, deadline)]

    def commit(self, heads: Mapping[int, StateName]) -> None:
        """States are durable on the clients' machines before their answers are sent."""

    def prune(self, heads: Mapping[int, StateName]) -> None:
        """A client's machine forgets by itself what a later request no longer starts from."""

    def close(self) -> None:
        """The grid belongs to the ServerApp."""

    def _find_nodes(self, clients: Sequence[int], wait: float) -> dict[int, int]:
        """Ask every node which clients it stands for, until all are found."""
        deadline = time.monotonic() + wait
        found: dict[int, int] = {}
        asked: set[int] = set()
        pending: dict[str, int] = {}
        while missing := sorted(set(clients) - set(found)):
            fresh = [node for node in self._grid.get_node_ids() if node not in asked]
            asked.update(fresh)
            names = self._grid.push_messages([self._make_query(node) for node in fresh]) if fresh else []
            pending.update(zip(names, fresh, strict=True))
            for answer in self._grid.pull_messages(list(pending)) if pending else []:
                node = pending.pop(answer.metadata.reply_to_message_id)
                if answer.has_error():
                    asked.discard(node)
                    continue
                stands_for = read_record(answer.content)["clients"].decode("ascii").split(",")
                found.update({int(client): node for client in stands_for})
            if time.monotonic() > deadline:
                raise FedAgentGymError(
                    f"no SuperNode stands for the clients {join_names(map(str, missing))} after {wait:g} s: start one for each"
                    ' (--node-config \'clients="0,1" workplace="/a/folder"\')'
                )
            time.sleep(0.2)
        return found

    def _make_query(self, node: int) -> Any:
        flower = require("flwr.app", "flower")
        return flower.Message(content=make_record({"clients": b"?"}), dst_node_id=node, message_type=QUERY)


def client_app() -> Any:
    """The ClientApp: a thin proxy. Flower starts a process for every message; what must stay lives in the resident worker."""
    flower = require("flwr.app", "flower")
    app = require("flwr.clientapp", "flower").ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def list_clients(message: Any, context: Any) -> Any:
        clients = NodeConfig.from_node_config(context.node_config).clients
        return flower.Message(content=make_record({"clients": ",".join(map(str, clients)).encode()}), reply_to=message)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        request, recipe, _ = decode_request(message.content)
        reply = forward_request(NodeConfig.from_node_config(context.node_config), request, recipe)
        return flower.Message(content=encode_reply(reply), reply_to=message)

    return app
