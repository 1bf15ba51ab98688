"""The interface of a federated algorithm: a global state, and a function that computes the next one in a round.

The server loop uses nothing else. Everything that must survive a crash is in the global state (a `ServerState`, stored by the
round's commit) or in the clients' states; an `Algorithm` object itself holds only what follows from its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from fedagentgym.base.streams import Stream, derive, generator, stream
from fedagentgym.federation.clients import Clients
from fedagentgym.federation.operation import Application
from fedagentgym.federation.server_state import ServerState
from fedagentgym.federation.vectors import Array

R = TypeVar("R")


@dataclass(frozen=True)
class Round:
    """One round on the server's side. Round 0 is the preparation; training rounds count from 1 to `total`.

    `participants` are the clients drawn for this round (`federation.clients_per_round` of them); `clients.ids` are all.
    """

    number: int
    total: int
    seed: int
    participants: tuple[int, ...]
    clients: Clients

    def derive(self, *purpose: int | str) -> int:
        """A child seed for the server, this round and purpose."""
        return derive(self.seed, "server", self.number, *purpose)

    def stream(self, *purpose: int | str) -> Stream:
        return stream(self.seed, "server", self.number, *purpose)

    def generator(self, *purpose: int | str) -> np.random.Generator:
        return generator(self.seed, "server", self.number, *purpose)


@dataclass(frozen=True)
class RoundResult:
    """The state after a round, and what is recorded about it.

    `metrics` are the round's numbers, `clients` the numbers of single clients, `episodes` sampled training episodes as plain
    values.
    """

    state: ServerState
    metrics: Mapping[str, float] = field(default_factory=dict)
    clients: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    episodes: Sequence[Mapping[str, Any]] = ()


class Algorithm(Application[R], Protocol[R]):
    """Server side and client operations of one method. `Application` is its client half, built in every worker."""

    @property
    def metered(self) -> bool:
        """False for methods that send nothing (one site alone): their bytes are recorded as zero."""

    def client_ids(self) -> Sequence[int]:
        """The numbers of all clients of the federation."""

    def initial_state(self) -> ServerState:
        """The global state before the first round."""

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """Work before round 1, committed and counted separately. Most algorithms return the state unchanged."""

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """One round: call clients, combine their replies."""

    def policy_parameters(self, state: ServerState) -> Mapping[str, Array]:
        """The trainable parameters of the policy that is evaluated and exported."""


def draw_participants(seed: int, round_number: int, ids: Sequence[int], count: int | None) -> tuple[int, ...]:
    """Distinct clients, uniformly without replacement, in the order of their numbers; all of them when `count` is None.

    >>> draw_participants(0, 1, range(4), None)
    (0, 1, 2, 3)
    """
    if count is None or count >= len(ids):
        return tuple(sorted(ids))
    chosen = stream(seed, "participants", round_number).choice(len(ids), count)
    return tuple(sorted(ids[int(position)] for position in chosen))
