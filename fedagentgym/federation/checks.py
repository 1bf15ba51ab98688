"""Checks of an update before it changes the global model, beyond the form of its message.

Dtype, shape and finiteness are checked when the reply is decoded. Here: the distance that the parameters moved, against a fixed
bound and against the other clients of the round; and clipping, which shortens an update instead of refusing it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from pydantic import Field

from fedagentgym.base.settings import Settings
from fedagentgym.federation.failures import Failure
from fedagentgym.federation.vectors import Array, Parameters


class UpdateChecks(Settings):
    """Bounds on the distance that a client's parameters may move in one round (Euclidean norm over all of them)."""

    max_norm: float | None = Field(default=None, gt=0.0, description="refuse an update with a greater norm")
    max_ratio: float | None = Field(
        default=20.0,
        gt=1.0,
        description="refuse an update whose norm exceeds this many times the lower median of the round's learners",
    )
    clip_norm: float | None = Field(default=None, gt=0.0, description="shorten a greater update to this norm")

    def find_refused(self, norms: Mapping[int, float], idle: Collection[int] = ()) -> list[Failure]:
        """The clients whose updates are too long, from the norms of all updates of the round. The median ignores `idle` clients
        (those without any signal to learn from, which move by the optimizer's decay alone), unless all are idle."""
        bound = self._compute_bound({client: norm for client, norm in norms.items() if client not in idle} or norms)
        return [
            Failure(client, "refused", f"update of norm {norm:.4g}: at most {bound:.4g} is allowed")
            for client, norm in norms.items()
            if not norm <= bound
        ]

    def clip(self, current: Parameters, parameters: Parameters, norm: float) -> Parameters:
        """The parameters, moved back towards `current` if their update is longer than `clip_norm`."""
        if self.clip_norm is None or norm <= self.clip_norm:
            return parameters
        return scale_update(current, parameters, self.clip_norm / norm)

    def _compute_bound(self, norms: Mapping[int, float]) -> float:
        bound = math.inf if self.max_norm is None else self.max_norm
        moved = sorted(norm for norm in norms.values() if norm > 0.0 and math.isfinite(norm))
        if self.max_ratio is not None and moved:
            bound = min(bound, self.max_ratio * moved[(len(moved) - 1) // 2])
        return min(bound, np.finfo(np.float64).max)


def scale_update(current: Parameters, parameters: Parameters, factor: float) -> dict[str, Array]:
    """`current` moved by `factor` times the update."""
    result = {}
    for name, value in current.items():
        wide = value.astype(np.float64)
        result[name] = (wide + factor * (parameters[name].astype(np.float64) - wide)).astype(value.dtype)
    return result
