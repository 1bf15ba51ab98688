"""What clients answer, taken apart with care: it comes from other machines.

Parameters are checked by the form of their message. The number of examples decides how much a client counts, so an answer without
a sensible one is refused. Metrics and episodes are for people: what is none is left out, and the update is used all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.federation.aggregation import Contribution
from fedagentgym.federation.failures import Failure
from fedagentgym.federation.message import Message


def contributions(answers: Mapping[int, Message]) -> tuple[list[Contribution], list[Failure]]:
    """The parameters of each client with the number of its examples; who names no such number."""
    given, malformed = [], []
    for client, answer in answers.items():
        examples = answer.control.get("examples")
        if isinstance(examples, int) and not isinstance(examples, bool) and 1 <= examples < 1 << 53:
            given.append(Contribution(client, answer.weights, examples))
        else:
            malformed.append(Failure(client, "refused", f"no number of examples: {str(examples)[:40]!r}"))
    return given, malformed


def metrics_of(answer: Message) -> dict[str, float]:
    """The numbers that a client tells."""
    told = answer.report.get("metrics")
    if not isinstance(told, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in told.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    }


def episodes_of(answers: Mapping[int, Message]) -> list[dict[str, Any]]:
    """The episodes that clients show, each with the client's number."""
    return [
        {**episode, "client": client}
        for client, answer in answers.items()
        if isinstance(answer.report.get("episodes"), list)
        for episode in answer.report["episodes"]
        if isinstance(episode, Mapping) and _has_json(episode)
    ]


def _has_json(value: Mapping[str, Any]) -> bool:
    try:
        canonical_json(value)
    except DataError:
        return False
    return True
