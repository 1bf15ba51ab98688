"""The interface of a federated algorithm: a global state, and a function that computes the next one in a round.

The server loop uses nothing else. Everything that must survive a crash is in the global state (a `ServerState`: the model's
parameters, the moments of the server's optimizer, the method's memory) or in the clients' states. The global state is committed
with every round and stored as one message, so that a run continues from it bit for bit; an `Algorithm` object itself holds only
what follows from its settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from fedagentgym.base.errors import DataError, show_value
from fedagentgym.base.streams import Stream, derive, generator, stream
from fedagentgym.federation.clients import Clients
from fedagentgym.federation.exchange import Application
from fedagentgym.federation.message import Array, Message

OPTIMIZER = "optimizer"
"""The set of a message that holds the moments of an optimizer."""


@dataclass(frozen=True, eq=False)
class ServerState:
    """The global state of a run, committed after every round. Everything that must survive a crash is in it.

    Attributes:
        parameters: What is trained and sent.
        optimizer: Moments of a server optimizer.
        memory: What else the method keeps, as plain values and arrays.
    """

    parameters: Mapping[str, Array]
    optimizer: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def message(self) -> Message:
        """The state as stored."""
        return Message(weights=self.parameters, sets={OPTIMIZER: self.optimizer}, control=self.memory)

    def check_shapes(self, like: Mapping[str, Array], what: str) -> None:
        """Refuse parameters that are not arrays with these names and shapes.

        Args:
            like: The arrays.
            what: What gave this state, for the error.

        Raises:
            DataError: Which parameter is missing, of another shape, or no array.
        """
        for name in (*like, *self.parameters):
            if name not in self.parameters:
                raise DataError(f"{what} left out the parameter {name!r}")
            if name not in like:
                raise DataError(f"{what} gave a parameter {name!r}, which there was not before")
            found, shape = self.parameters[name], like[name].shape
            if not isinstance(found, np.ndarray) or found.shape != shape:
                given = f"an array of shape {found.shape}" if isinstance(found, np.ndarray) else show_value(found)
                raise DataError(f"{what} gave {given} for {name!r}, which is an array of shape {shape}")

    @property
    def digest(self) -> str:
        """The digest of the whole state."""
        return self.message.digest

    @classmethod
    def from_message(cls, message: Message) -> ServerState:
        """Make a state from a stored message.

        Args:
            message: The message.

        Returns:
            The state, which shares its arrays.

        Raises:
            DataError: If the message is no global state.
        """
        if foreign := next((kind for kind in ("text", "scores", "report") if getattr(message, kind)), None):
            raise DataError(f"not the global state of a run: it has a section {foreign!r}")
        if odd := next((name for name in message.sets if name != OPTIMIZER), None):
            raise DataError(f"not the global state of a run: it has a set {odd!r}")
        optimizer = message.sets.get(OPTIMIZER, {})
        for name, value in (*message.weights.items(), *optimizer.items()):
            if not isinstance(value, np.ndarray):
                raise DataError(f"not the global state of a run: the parameter {name!r} is no array")
        state = cls(message.weights, optimizer, message.control)
        state.__dict__["message"] = message
        return state


R = TypeVar("R")


@dataclass(frozen=True)
class Round:
    """One round on the server's side. Round 0 is the preparation; training rounds count from 1 to `total`.

    `participants` are the clients drawn for this round (`federation.clients_per_round` of them); `clients.ids` are all. `secret`
    is what a private run draws them from, and its noise.
    """

    number: int
    total: int
    seed: int
    participants: tuple[int, ...]
    clients: Clients
    secret: int | None = None

    def derive(self, *purpose: int | str) -> int:
        """A child seed for the server, this round and purpose."""
        return derive(self.seed, "server", self.number, *purpose)

    def stream(self, *purpose: int | str) -> Stream:
        return stream(self.seed, "server", self.number, *purpose)

    def generator(self, *purpose: int | str) -> np.random.Generator:
        return generator(self.seed, "server", self.number, *purpose)

    def draw_noise(self, *purpose: int | str) -> np.random.Generator:
        """The generator of what protects clients: of the secret in a private run, else of the seed."""
        return generator(self.seed if self.secret is None else self.secret, "server", self.number, *purpose)


@dataclass(frozen=True)
class RoundResult:
    """A method's result of a round.

    Attributes:
        state: The next global state.
        metrics: Numbers of the round by name.
        clients: Numbers of single clients.
        episodes: Sampled training episodes, a JSON line each.
    """

    state: ServerState
    metrics: Mapping[str, float] = field(default_factory=dict)
    clients: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    episodes: Sequence[str] = ()


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
