"""Which of Flower's nodes stands for which client: the nodes are asked, and their answers are claims.

Flower's node key shows that an answer comes from a node that the server's owner has registered, not that this node is the
client that it claims to be. Two nodes that claim one client therefore stop the run; `federation.options.nodes`, which assigns
clients to nodes by number, is believed before any claim.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedagentgym.base.errors import DataError, FedAgentGymError, join_names
from fedagentgym.base.extras import require
from fedagentgym.base.logs import get_logger
from fedagentgym.federation.backends.flower_wire import QUERY, make_record, read_record
from fedagentgym.federation.exchange import MOST_CLIENTS, clean_text

log = get_logger(__name__)
GRACE_SECONDS = 10.0
"""How long the other nodes that were asked may still answer when every client has a node: one may claim the same client."""
_POLL_SECONDS = 0.2
_LONGEST_CLAIM = 1 << 20


def make_claim(clients: Iterable[int]) -> Any:
    """The record in which a node says whom it stands for."""
    return make_record({"clients": ",".join(map(str, clients)).encode("ascii")})


def read_claim(content: Any) -> tuple[int, ...]:
    """The clients of a node's record; `DataError` if it names none."""
    claimed = read_record(content, ("clients",))["clients"]
    parts = claimed.split(b",") if len(claimed) <= _LONGEST_CLAIM else []
    if not parts or not all(part.isdigit() and len(part) <= 10 and int(part) < MOST_CLIENTS for part in parts):
        raise DataError("it does not say which clients it stands for")
    return tuple(int(part) for part in parts)


def find_nodes(
    grid: Any, clients: Sequence[int], wait: float, assigned: Mapping[int, Sequence[int]] | None = None
) -> dict[int, int]:
    """The node of every client, asked for until all are found."""
    search = _NodeSearch(grid, frozenset(clients), assigned)
    deadline = time.monotonic() + wait
    search.ask()
    while missing := sorted(search.clients - set(search.found)):
        if time.monotonic() > deadline:
            raise FedAgentGymError(
                f"no SuperNode stands for the clients {join_names(map(str, missing))} after {wait:g} s: start one for each"
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
    """What has been asked and what was answered."""

    def __init__(self, grid: Any, clients: frozenset[int], assigned: Mapping[int, Sequence[int]] | None) -> None:
        self.clients = clients
        self.found: dict[int, int] = {}
        self.pending: dict[str, int] = {}
        self._grid, self._assigned = grid, assigned
        self._asked: set[int] = set()

    def ask(self) -> None:
        """Ask the nodes that are new."""
        fresh = [node for node in self._grid.get_node_ids() if node not in self._asked]
        self._asked.update(fresh)
        names = self._grid.push_messages([_make_query(node) for node in fresh]) if fresh else []
        self.pending.update(zip(names, fresh, strict=True))

    def read_answers(self) -> None:
        """Take what has come; a node that answers with an error is asked again, one that answers nonsense is left out."""
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
            except Exception as error:  # whatever Flower makes of a record that a node forged
                log.warning("node %d is left out: %s", node, clean_text(error, 200))
                continue
            self._note(node, claimed)

    def _note(self, node: int, claimed: Iterable[int]) -> None:
        for client in sorted(self.clients & set(claimed)):
            if self._assigned is not None and client not in self._assigned.get(node, ()):
                log.warning(
                    "node %d says that it stands for client %d, which federation.options.nodes denies", node, client
                )
                continue
            if (other := self.found.setdefault(client, node)) != node:
                raise FedAgentGymError(
                    f"the nodes {other} and {node} both say that they stand for client {client}: stop one of them, or say in"
                    f" federation.options.nodes which is right, as {{{node}: [{client}]}}"
                )


def _make_query(node: int) -> Any:
    flower = require("flwr.app", "flower")
    return flower.Message(content=make_record({"clients": b"?"}), dst_node_id=node, message_type=QUERY)
