"""Exact byte counts of the messages between server and clients: by direction and kind, framing and reports apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedagentgym.federation.message import KINDS, Message

Direction = Literal["up", "down"]
DIRECTIONS: tuple[Direction, Direction] = ("down", "up")
COLUMNS = (*KINDS, "framing", "report", "messages")


class Meter:
    """Counts messages. `down` is server to client, `up` is client to server.

    For every direction: `weights`, `text`, `scores`, `control` are payload (array bytes and text), `framing` is the rest of
    the encoding (names, shapes, numbers among plain values), `report` is for people only.
    """

    def __init__(self, *, counting: bool = True) -> None:
        self._counting = counting
        self._counts = {direction: dict.fromkeys(COLUMNS, 0) for direction in DIRECTIONS}

    def record(self, direction: Direction, message: Message, times: int = 1) -> None:
        if not self._counting:
            return
        counts = self._counts[direction]
        payload = message.count_payload()
        report = len(message.encoded_report)
        for kind, size in payload.items():
            counts[kind] += size * times
        counts["framing"] += (message.size - sum(payload.values()) - report) * times
        counts["report"] += report * times
        counts["messages"] += times

    def get_counts(self) -> dict[str, dict[str, int]]:
        """A plain copy, as it is stored with a round."""
        return {direction: dict(columns) for direction, columns in self._counts.items()}


def payload_bytes(counts: Mapping[str, Mapping[str, int]], direction: Direction | None = None) -> int:
    """Array bytes and text, without framing."""
    chosen = DIRECTIONS if direction is None else (direction,)
    return sum(counts[way][kind] for way in chosen for kind in KINDS)


def headline_bytes(counts: Mapping[str, Mapping[str, int]], direction: Direction | None = None) -> int:
    """Payload and framing: what the algorithm would send over a network."""
    chosen = DIRECTIONS if direction is None else (direction,)
    return payload_bytes(counts, direction) + sum(counts[way]["framing"] for way in chosen)


def add_counts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The sum of two counts."""
    return {way: {name: first[way][name] + second[way][name] for name in COLUMNS} for way in DIRECTIONS}
