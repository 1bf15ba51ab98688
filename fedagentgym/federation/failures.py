"""Faults are expected: what is recorded of a failed client, and when too many failures stop a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from fedagentgym.base.errors import FedAgentGymError

Reason = Literal["error", "timeout", "dead", "refused"]


class Failure(NamedTuple):
    """In place of a reply: the client raised, was late, died, or gave an invalid reply."""

    client: int
    reason: Reason
    message: str
    detail: str = ""

    def to_record(self, round_: int, call: int, operation: str) -> dict[str, object]:
        """The line that a run records of it."""
        return {"round": round_, "call": call, "operation": operation, **self._asdict()}


def hide_text(record: Mapping[str, object]) -> dict[str, object]:
    """The line of a failure without the client's texts: its error and its trace can quote its tasks."""
    return {**record, "message": "not kept: the run is private", "detail": ""}


class QuorumError(FedAgentGymError):
    """Too few clients replied for the round to continue; the last committed round is intact."""

    def __init__(self, operation: str, round_: int, failures: Mapping[int, Failure], asked: int, needed: int) -> None:
        self.failures = dict(failures)
        named = "; ".join(f"client {f.client} {f.reason}: {f.message}" for f in list(failures.values())[:3])
        super().__init__(
            f"round {round_}: {asked - len(failures)} of {asked} clients answered {operation!r}, the quorum is {needed}"
            f" ({named}); the last committed round is intact, resume when the clients are available"
        )
