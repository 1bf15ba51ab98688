"""The state of a site in messages and in the server's state, with a learner's moments next to its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.federation.server_state import ServerState
from fedagentgym.learning.local import SiteState


def copy_arrays(values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Writable copies of a message's arrays, which are read-only views of its bytes."""
    return {name: np.array(array) for name, array in values.items() if isinstance(array, np.ndarray)}


def make_site_state(state: ServerState) -> SiteState:
    """The policy that the server trains itself, as its last round left it."""
    return SiteState(copy_arrays(state.parameters), copy_arrays(state.optimizer), step=int(state.memory.get("step", 0)))
