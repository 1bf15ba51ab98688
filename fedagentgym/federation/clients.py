"""The clients as an algorithm's server side sees them, one `Clients` per round.

`call` sends one message to each of some clients and returns their replies; `iter_replies` yields them one after the other. What
became of the others is a `Failure` in `failed`. The algorithm does not see where the clients run, how often a call was tried, and
where their states are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import not_
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, field_validator

from fedagentgym.base.errors import DataError, FedAgentGymError, OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.federation.backends import Backend
from fedagentgym.federation.exchange import LONGEST_ERROR, Operation, Request, StateName, clean_text
from fedagentgym.federation.message import Message, Parameters
from fedagentgym.federation.progress import ProgressTracker
from fedagentgym.federation.records import Meter

MOST_TOGETHER = 16
"""Clients that roll out in one batch at most: every adapter adds work to each token of all others."""

Reason = Literal["error", "timeout", "dead", "refused"]


class Failure(NamedTuple):
    """In place of a reply: the client raised, was late, died, or gave an invalid reply."""

    client: int
    reason: Reason
    message: str
    detail: str = ""


class QuorumError(FedAgentGymError):
    """Too few clients replied for the round to continue; the last committed round is intact."""

    def __init__(self, operation: str, round_: int, failures: Mapping[int, Failure], asked: int, needed: int) -> None:
        self.failures = dict(failures)
        named = "; ".join(f"client {f.client} {f.reason}: {f.message}" for f in list(failures.values())[:3])
        super().__init__(
            f"round {round_}: {asked - len(failures)} of {asked} clients answered {operation!r}, the quorum is {needed}"
            f" ({named}); the last committed round is intact, resume when the clients are available"
        )


class FederationSettings(Settings):
    """The backend of the clients, how many take part, and how many must answer: the section `federation` of a configuration."""

    backend: str = Field(default="in-process", description="in-process or flower")
    rounds: int = Field(default=20, ge=0, description="communication rounds; 0 only evaluates the initial agent")
    raised_from: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="planned rounds of a run before it was extended; written when it is extended"
    )
    clients_per_round: int | None = Field(default=None, ge=1, description="clients drawn per round; all by default")
    workers: int = Field(default=0, ge=0, description="worker processes; 0 runs the clients in this process")
    together: int | None = Field(
        default=None,
        exclude_if=not_,
        ge=2,
        le=MOST_TOGETHER,
        description="clients that roll out in one batch, each with its adapter, while the others wait for their turn; null: one"
        " after the other",
    )
    device_per_worker: tuple[str, ...] = Field(
        default=(), description="devices that the workers take in turn, cuda:0, cuda:1"
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
        backend: Where they run.
        operations: What they can be asked to do, by name.
        ids: The numbers of all clients of the federation.
        round_number: The round.
        seed: The run's seed.
        heads: The newest state of every client that has one; replies replace them.
        quorum: How many of those called must reply, unless a call says so.
        deadline: The seconds that each may take, unless a call says so.
        meter: Counts the bytes of messages.
        streams: Numbers by which clients draw in place of their own, for tests that force two clients to draw alike.
        progress: Is told of calls and replies.
        next_call: The number of the next call.
        failures: All failures, as they are recorded.
        failed: The clients that gave no reply to the last call.
        seconds: What each took.
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

        `quorum` is how many of them must reply (a share below or equal to 1.0, or a whole number), `deadline` the seconds
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
        """`call`, one reply at a time: (client, reply) in the order of the client numbers, as soon as a reply is there.

        With `start`, the distance of replied weights from it is measured while they are checked (`Message.measure_distance`).

        A caller that drops each reply holds a single one at a time, however many clients there are. Raises `QuorumError` after
        the last reply, and must be read to its end before the next call.
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
            if reply.status == "ok":  # it is accepted if it matches the declaration, and so is the client's new state
                try:
                    answer = Message.decode(reply.message, declared.reply, start)
                    self.meter.record("up", answer)
                    if reply.state is not None:
                        self.heads[expected] = name
                except DataError as error:
                    answer = Failure(expected, "refused", clean_text(error, LONGEST_ERROR))
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
        """Record clients of the last call whose replies are missing or not used; the quorum must hold without them."""
        operation, asked, needed = self._last
        where = {"round": self.round_number, "call": self.next_call - 1, "operation": operation}
        self.failures += [{**where, **failure._asdict()} for failure in failures]
        self.failed |= {failure.client: failure for failure in failures}
        if asked - len(self.failed) < needed:
            raise QuorumError(operation, self.round_number, self.failed, asked, needed)


def resolve_quorum(quorum: float | int | None, asked: int) -> int:
    """The number of replies for a quorum: None is one, a fraction is a share of those called, an integer is a number."""
    if quorum is None:
        return min(1, asked)
    if isinstance(quorum, bool) or quorum < 0 or (isinstance(quorum, float) and quorum > 1.0):
        raise OptionError(f"a quorum is a share between 0 and 1 or a whole number of clients, got {quorum!r}")
    if isinstance(quorum, int):
        return min(quorum, asked)
    return math.ceil(quorum * asked - 1e-9)
