"""The global state of a run: the model's parameters, the moments of the server's optimizer, and the method's memory.

It is committed with every round and stored as one message, so that a run continues from it bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedagentgym.base.errors import DataError
from fedagentgym.federation.message import Message
from fedagentgym.federation.vectors import Array

OPTIMIZER = "optimizer/"
"""Prefix of the optimizer's arrays in the message, next to the parameters."""


@dataclass(frozen=True, eq=False)
class ServerState:
    """The server's state from round to round.

    `parameters` are what is trained and sent. `optimizer` holds the moments of a server optimizer, or of a policy that the
    server trains itself. `memory` holds everything else, as plain values and arrays.
    """

    parameters: Mapping[str, Array]
    optimizer: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def message(self) -> Message:
        """The state as stored."""
        if clash := next((name for name in self.parameters if name.startswith(OPTIMIZER)), None):
            raise DataError(
                f"a parameter cannot be called {clash!r}: {OPTIMIZER!r} is the prefix of the optimizer's arrays"
            )
        return Message(weights={**self.parameters, **add_prefix(OPTIMIZER, self.optimizer)}, control=self.memory)

    @property
    def digest(self) -> str:
        """The digest of the whole state."""
        return self.message.digest

    @classmethod
    def from_message(cls, message: Message) -> ServerState:
        """The state from a message; it shares the message's arrays."""
        if foreign := next((kind for kind in ("text", "scores", "report") if getattr(message, kind)), None):
            raise DataError(f"not the global state of a run: it has a section {foreign!r}")
        if odd := next((name for name, value in message.weights.items() if not isinstance(value, np.ndarray)), None):
            raise DataError(f"not the global state of a run: the parameter {odd!r} is no array")
        parameters = {name: array for name, array in message.weights.items() if not name.startswith(OPTIMIZER)}
        state = cls(parameters, strip_prefix(OPTIMIZER, message.weights), message.control)
        state.__dict__["message"] = message
        return state


def add_prefix(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under names with a prefix."""
    return {prefix + name: value for name, value in values.items()}


def strip_prefix(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values whose names have the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
