"""What a message keeps of a learner: parameters, an optimizer's moments, a round's start, told apart by prefixes.

A policy that the server trains itself (FedGRPO, DPSDA-FL) lies in the global state with its moments beside it; a client's state
holds the parts that its method must remember.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.federation.message import Message
from fedagentgym.learning.local import SiteState

OPTIMIZER = "optimizer/"


def marked(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under names with a prefix."""
    return {prefix + name: value for name, value in values.items()}


def unmarked(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values whose names have the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def writable(arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Copies of arrays that came in a message, which are read-only views of its bytes."""
    return {name: np.array(array) for name, array in arrays.items() if isinstance(array, np.ndarray)}


def learner_weights(site: SiteState) -> dict[str, NDArray[Any]]:
    """Parameters with the moments beside them, as a global state holds them."""
    return {**site.weights, **marked(OPTIMIZER, site.optimizer)}


def parameters(state: Message) -> dict[str, NDArray[Any]]:
    """The parameters alone."""
    return {name: array for name, array in state.weights.items() if not name.startswith(OPTIMIZER)}


def learner(state: Message) -> SiteState:
    """The server's learner as its last round left it."""
    moments = writable(unmarked(OPTIMIZER, state.weights))
    return SiteState(writable(parameters(state)), moments, step=int(state.control.get("step", 0)))
