"""The interface of a federated algorithm: a global state, a function that computes the next state in a round, and the clients.

The server loop uses nothing else. Everything that must survive a crash is in the global state (a `ServerState`: the model's
parameters, the moments of the server's optimizer, the method's memory) or in the clients' states. The global state is committed
with every round and stored as one message, so that a run continues from it bit for bit; an `Algorithm` object itself holds only
what follows from its settings.

A round has one `Clients`: `call` sends one message to each of some clients and returns their replies; `iter_replies` yields them
one after the other. A client without a usable reply has a `Failure` in `failed`. The algorithm does not see where the clients
run, how often a call was tried, or where client states are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from numbers import Integral, Real
from operator import not_
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from pydantic import Field, field_validator

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError, show_value
from fedagentgym.base.settings import Settings
from fedagentgym.base.shorten import show_fields
from fedagentgym.base.streams import Stream, derive, generator, stream
from fedagentgym.federation.backends import Backend
from fedagentgym.federation.exchange import MAX_ERROR_LENGTH, Application, Operation, Request, StateName, clean_text
from fedagentgym.federation.message import Array, Message, Parameters
from fedagentgym.federation.progress import ProgressTracker
from fedagentgym.federation.records import Meter

OPTIMIZER = "optimizer"
"""The set of a message that holds the moments of an optimizer."""


def check_part(value: object, kind: type | UnionType, what: str, place: str) -> None:
    """Refuse a part of a method's result that is of another type.

    Raises:
        DataError: The sentence names the method, the value and its place in the result.
    """
    if not isinstance(value, kind):
        raise DataError(f"{what} gave {show_value(value)} {place}")


@dataclass(frozen=True, eq=False)
class ServerState:
    """The global state of a run, committed after every round. Everything that must survive a crash is in it.

    Attributes:
        parameters: The parameters that are trained and sent.
        optimizer: Moments of a server optimizer.
        memory: Further values that the method keeps, plain ones and arrays.
    """

    parameters: Mapping[str, Array]
    optimizer: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return show_fields(self)

    @cached_property
    def message(self) -> Message:
        """The state as the message that is stored."""
        return Message(weights=self.parameters, sets={OPTIMIZER: self.optimizer}, control=self.memory)

    def check_shapes(self, like: Mapping[str, Array], what: str, *, wide: bool = False) -> None:
        """Refuse parameters that are not arrays with these names, shapes and types.

        Args:
            like: Arrays of the expected names, shapes and types.
            what: The name of what made this state, for the error.
            wide: True if the arrays may have other types, which a later step makes the expected ones.

        Raises:
            DataError: If a parameter is missing, of another shape or type, or no array; the sentence names it.
        """
        check_part(self.parameters, Mapping, what, "as the parameters, which must be a mapping")
        for name in (*like, *self.parameters):
            if name not in self.parameters:
                raise DataError(f"{what} left out the parameter {name!r}")
            if name not in like:
                raise DataError(f"{what} gave a parameter {name!r}, which the state did not have before")
            found, shape = self.parameters[name], like[name].shape
            if not isinstance(found, np.ndarray) or found.shape != shape:
                given = f"an array of shape {found.shape}" if isinstance(found, np.ndarray) else show_value(found)
                raise DataError(f"{what} gave {given} for {name!r}, which is an array of shape {shape}")
            if not wide and found.dtype != like[name].dtype:
                raise DataError(
                    f"{what} gave an array of {found.dtype} for {name!r}, which is an array of {like[name].dtype}"
                )

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
            The state, which shares the message's arrays.

        Raises:
            DataError: If the message is no global state.
        """
        if foreign := next((kind for kind in ("text", "scores", "report") if getattr(message, kind)), None):
            raise DataError(f"not the global state of a run: it has a section {foreign!r}")
        if unknown := next((name for name in message.sets if name != OPTIMIZER), None):
            raise DataError(f"not the global state of a run: it has a set {unknown!r}")
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

    `participants` are the clients drawn for this round (`federation.clients_per_round` of them); `clients.ids` are all clients. A
    private run draws its participants and its noise from `secret`.
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
        """A generator of noise that protects clients: seeded with the secret in a private run, otherwise with the seed."""
        return generator(self.seed if self.secret is None else self.secret, "server", self.number, *purpose)


@dataclass(frozen=True)
class RoundResult:
    """A method's result of a round.

    Attributes:
        state: The next global state.
        metrics: Metrics of the round by name.
        clients: Metrics of single clients, by client number and name.
        episodes: Sampled training episodes, a JSON line each.
    """

    state: ServerState
    metrics: Mapping[str, float] = field(default_factory=dict)
    clients: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    episodes: list[str] | tuple[str, ...] = ()

    def __repr__(self) -> str:
        return show_fields(self)

    def check(self, like: Mapping[str, Array], what: str) -> None:
        """Refuse a result that cannot be committed.

        Args:
            like: The parameters of the state before the round.
            what: The name of what made this result, for the error.

        Raises:
            DataError: If a part of the result is of another type than its attribute's; the sentence names it.
        """
        check_part(self.state, ServerState, what, "as the state, which must be a ServerState")
        self.state.check_shapes(like, what)
        check_part(self.state.optimizer, Mapping, what, "as the optimizer, which must be a mapping")
        for name, value in self.state.optimizer.items():
            check_part(value, np.ndarray, what, f"for {name!r} of the optimizer, which must be an array")
        try:
            _ = self.state.digest
        except DataError as error:
            raise DataError(f"{what} gave a state that cannot be stored: {error}") from error
        check_part(self.clients, Mapping, what, "as the clients' metrics, which must be a mapping")
        for client in self.clients:
            check_part(client, Integral, what, "as the number of a client, which must be an integer")
        for numbers in (self.metrics, *self.clients.values()):
            check_part(numbers, Mapping, what, "as metrics, which must be a mapping")
            for name, number in numbers.items():
                check_part(number, Real | np.bool_, what, f"for the metric {name!r}, which must be a number")
        check_part(self.episodes, list | tuple, what, "as the episodes, which must be a list")
        for line in self.episodes:
            check_part(line, str, what, "as an episode, which must be a line of JSON")


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


# ---- the clients of a round -------------------------------------------------------------------------------------------

MAX_TOGETHER = 16
"""Maximum number of clients that roll out in one batch: every adapter adds work to each token of all others."""

Reason = Literal["error", "timeout", "dead", "refused"]


class Failure(NamedTuple):
    """The reason why a client has no usable reply: it raised, was late, died, or gave a reply that was refused."""

    client: int
    reason: Reason
    message: str
    detail: str = ""


class QuorumError(FedAgentGymError):
    """Too few clients replied for the round to continue; the last committed round is intact."""

    def __init__(self, operation: str, round_: int, failures: Mapping[int, Failure], asked: int, needed: int) -> None:
        self.failures = dict(failures)
        named = "; ".join(f"client {f.client} {f.reason}: {f.message}" for f in list(failures.values())[:3])
        reasons = {failure.reason for failure in failures.values()}
        when = "the clients are available"
        if reasons <= {"error", "refused"}:
            when = "this is mended"
        elif reasons == {"timeout"}:
            when = "the clients are faster, or with a longer federation.deadline"
        super().__init__(
            f"round {round_}: {asked - len(failures)} of {asked} clients answered {operation!r}, the quorum is {needed}"
            f" ({named}); the last committed round is intact, resume when {when}"
        )


class FederationSettings(Settings):
    """The section `federation` of a configuration: the backend, the number of participants, and the quorum."""

    backend: str = Field(default="in-process", description="where the clients run: in-process or flower")
    rounds: int = Field(default=20, ge=0, description="communication rounds; 0 only evaluates the initial agent")
    raised_from: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="planned rounds of a run before it was extended; written when it is extended"
    )
    clients_per_round: int | None = Field(default=None, ge=1, description="clients drawn per round; by default all")
    workers: int = Field(default=0, ge=0, description="worker processes; 0 runs the clients in this process")
    together: int | None = Field(
        default=None,
        exclude_if=not_,
        ge=2,
        le=MAX_TOGETHER,
        description="clients that roll out in one batch, each with its adapter, while the others wait for their turn; null:"
        " clients roll out one after the other",
    )
    device_per_worker: tuple[str, ...] = Field(
        default=(), description="devices that the workers take in turn, such as [cuda:0, cuda:1]"
    )
    quorum: float | int | None = Field(
        default=0.5, description="share (0.5) or number (3) of the called clients that must reply"
    )
    deadline: float | None = Field(default=None, gt=0, description="seconds that one client may take for one call")
    options: dict[str, Any] = Field(default_factory=dict, description="options of this backend")

    @field_validator("quorum")
    @classmethod
    def _check_quorum_value(cls, quorum: float | int | None) -> float | int | None:
        try:
            resolve_quorum(quorum, 1)
        except OptionError as error:
            raise ValueError(str(error)) from None
        return quorum


@dataclass(eq=False)
class Clients:
    """The clients of one round.

    Attributes:
        backend: The backend that runs them.
        operations: The operations that the server can call, by name.
        ids: The numbers of all clients of the federation.
        round_number: The round.
        seed: The run's seed.
        heads: The name of the newest state of every client that has one; a reply with a new state replaces it.
        quorum: How many of the called clients must reply; a call may give another quorum.
        deadline: The seconds that each client may take; a call may give another deadline.
        meter: Counts the bytes of messages.
        streams: Stream numbers to use in place of clients' own numbers, for tests in which two clients draw alike.
        progress: Receives calls and replies.
        next_call: The number of the next call.
        failures: The failures of all calls, as records.
        failed: The clients whose replies to the last call are missing or not used.
        seconds: The seconds that each client took, over all calls.
    """

    backend: Backend
    operations: Mapping[str, Operation[Any]]
    ids: Sequence[int]
    _: KW_ONLY
    round_number: int
    seed: int
    heads: dict[int, StateName]
    quorum: float | int | None = None
    deadline: float | None = None
    meter: Meter = field(default_factory=Meter)
    streams: Mapping[int, int] = field(default_factory=dict)
    progress: ProgressTracker | None = None
    next_call: int = 0
    failures: list[dict[str, object]] = field(default_factory=list, init=False)
    failed: dict[int, Failure] = field(default_factory=dict, init=False)
    seconds: dict[int, float] = field(default_factory=dict, init=False)
    _last: tuple[str, int, int] = field(default=("", 0, 0), init=False)
    """The last call: its operation, the number of clients asked, and of replies needed."""

    def call(
        self,
        operation: str,
        messages: Mapping[int, Message],
        *,
        quorum: float | int | None = None,
        deadline: float | None = None,
    ) -> dict[int, Message]:
        """Call the given clients, in the order of their numbers; returns the replies in that order.

        `quorum` is how many of them must reply (a share of at most 1.0, or a whole number), `deadline` the seconds
        that each may take; both default to the run's settings. Raises `QuorumError` when too few reply.
        """
        return dict(self.iter_replies(operation, messages, quorum=quorum, deadline=deadline))

    def iter_replies(
        self,
        operation: str,
        messages: Mapping[int, Message],
        *,
        quorum: float | int | None = None,
        deadline: float | None = None,
        start: Parameters | None = None,
    ) -> Iterator[tuple[int, Message]]:
        """Like `call`, but yield each (client, reply) as soon as it is available, in the order of the client numbers.

        With `start`, the distance of the replied weights from `start` is measured while they are checked
        (`Message.measure_distance`).

        A caller that drops each reply has only one reply in memory at a time, however many clients there are. `QuorumError` is
        raised after the last reply, and the iterator must be read to its end before the next call.
        """
        if operation not in self.operations:
            raise DataError(f"the clients know no operation {operation!r}: known are {', '.join(self.operations)}")
        if strangers := sorted(set(messages) - set(self.ids)):
            raise DataError(f"{operation!r} was called for clients {strangers[:10]}, which are not in this federation")
        declared, order = self.operations[operation], sorted(messages)
        name = StateName(self.round_number, self.next_call)
        self.next_call += 1
        for message in {id(message): message for message in messages.values()}.values():
            Message.decode(message.pieces, declared.request)  # checked once, however many clients it goes to
        limits = declared.reply.limits.total, declared.state.limits.total
        requests = []
        for client in order:
            body, stream = messages[client].pieces, self.streams.get(client, client)
            requests.append(Request(client, name, operation, body, self.heads.get(client), self.seed, stream, *limits))
            self.meter.record("down", messages[client])
        self.failed = {}
        self._last = (operation, len(order), resolve_quorum(self.quorum if quorum is None else quorum, len(order)))
        if self.progress is not None:
            self.progress.ask(order)
        waiting, failures = iter(order), list[Failure]()
        for reply in self.backend.run(requests, self.deadline if deadline is None else deadline):
            if reply.client != (expected := next(waiting, None)):
                raise DataError(f"the backend answered for client {reply.client} in place of client {expected}")
            self.seconds[expected] = self.seconds.get(expected, 0.0) + reply.seconds
            answer: Message | Failure
            if reply.status == "ok":  # a reply that matches its declaration is accepted with the client's new state
                try:
                    answer = Message.decode(reply.message, declared.reply, start)
                    self.meter.record("up", answer)
                    if reply.state is not None:
                        self.heads[expected] = name
                except DataError as error:
                    answer = Failure(expected, "refused", clean_text(error, MAX_ERROR_LENGTH))
            else:
                answer = Failure(expected, reply.status, reply.error, reply.detail)
            if self.progress is not None:
                self.progress.answer(expected)
            del reply  # while the caller works with a reply, it is the only one in memory
            if isinstance(answer, Failure):
                failures.append(answer)
            else:
                yield expected, answer
            del answer
        if (missing := next(waiting, None)) is not None:
            raise DataError(f"the backend gave no reply for client {missing}")
        self.refuse(failures)

    def refuse(self, failures: Sequence[Failure]) -> None:
        """Record failures of clients of the last call; raise a `QuorumError` if too few usable replies are left."""
        operation, asked, needed = self._last
        where = {"round": self.round_number, "call": self.next_call - 1, "operation": operation}
        self.failures += [{**where, **failure._asdict()} for failure in failures]
        self.failed |= {failure.client: failure for failure in failures}
        if asked - len(self.failed) < needed:
            raise QuorumError(operation, self.round_number, self.failed, asked, needed)


def resolve_quorum(quorum: float | int | None, asked: int) -> int:
    """The number of replies that a quorum needs: a float is a share of the `asked` clients, an integer a number of clients,
    and None means one reply."""
    if quorum is None:
        return min(1, asked)
    if isinstance(quorum, bool) or quorum < 0 or (isinstance(quorum, float) and quorum > 1.0):
        raise OptionError(f"a quorum must be a share between 0 and 1 or a whole number of clients, got {quorum!r}")
    if isinstance(quorum, int):
        return min(quorum, asked)
    return math.ceil(quorum * asked - 1e-9)
