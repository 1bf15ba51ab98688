"""Validation of clients' replies, since they come from other machines.

Parameters are checked by the form of their message. The number of examples determines a client's weight, so a reply without a
valid one is refused. Metrics and episodes are only displayed: invalid ones are dropped, and the update is used all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.federation.message import Message

MOST_METRICS = 256
MOST_EPISODES = 256
LONGEST_NAME = 100


def read_examples(reply: Message) -> int | None:
    """The number of examples behind a reply; None if it has no valid one."""
    examples = reply.control.get("examples")
    if isinstance(examples, int) and not isinstance(examples, bool) and 1 <= examples < 1 << 53:
        return examples
    return None


def read_metrics(reply: Message) -> dict[str, float]:
    """The numbers that a client reports."""
    reported = reply.report.get("metrics")
    if not isinstance(reported, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in islice(reported.items(), MOST_METRICS)
        if len(name) <= LONGEST_NAME and name.isprintable()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    }


def is_idle(metrics: Mapping[str, float]) -> bool:
    """Whether a client reports that none of its groups of episodes had a difference in rewards to learn from."""
    return "groups" in metrics and metrics.get("groups/constant", 0.0) >= metrics["groups"]


def read_episodes(client: int, reply: Message) -> list[dict[str, Any]]:
    """The episodes that a client returns, each with the client's number."""
    shown = reply.report.get("episodes")
    if not isinstance(shown, list):
        return []
    first = shown[:MOST_EPISODES]
    return [{**episode, "client": client} for episode in first if isinstance(episode, Mapping) and _is_json(episode)]


def _is_json(value: Mapping[str, Any]) -> bool:
    try:
        canonical_json(value)
    except DataError:
        return False
    return True
