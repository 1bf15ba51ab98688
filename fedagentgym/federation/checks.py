"""What an update must pass before it touches the global model, beyond the form of its message.

Dtype, shape and finiteness are checked when the answer is decoded. Here: how far the parameters moved, against a fixed bound
and against the other clients of the round; and clipping, which keeps an update but shortens it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import LONGEST_BLOCK, Contribution, Parameters, blocks
from fedagentgym.federation.failures import Failure
from fedagentgym.federation.message import squared_length


class UpdateChecks(Settings):
    """Bounds on how far a client's parameters may move in one round (Euclidean norm over all of them)."""

    max_norm: float | None = Field(default=None, gt=0.0, description="refuse an update with a greater norm")
    max_ratio: float | None = Field(
        default=20.0,
        gt=1.0,
        description="refuse an update whose norm exceeds this many times the lower median of the round's",
    )
    clip_norm: float | None = Field(default=None, gt=0.0, description="shorten a greater update to this norm")

    def apply(
        self, current: Parameters, given: Sequence[Contribution]
    ) -> tuple[list[Contribution], list[Failure], dict[int, float]]:
        """The contributions that may be used, the refused ones, and every update's norm by client."""
        found = update_norms(current, [each.parameters for each in given])
        norms = {each.client: norm for each, norm in zip(given, found, strict=True)}
        bound = self._bound(norms)
        good, refused = [], []
        for each in given:
            norm = norms[each.client]
            if not norm <= bound:
                refused.append(
                    Failure(each.client, "refused", f"update of norm {norm:.4g}: at most {bound:.4g} is taken")
                )
            elif self.clip_norm is not None and norm > self.clip_norm:
                good.append(each._replace(parameters=scaled(current, each.parameters, self.clip_norm / norm)))
            else:
                good.append(each)
        return good, refused, norms

    def _bound(self, norms: Mapping[int, float]) -> float:
        bound = math.inf if self.max_norm is None else self.max_norm
        moved = sorted(norm for norm in norms.values() if norm > 0.0 and math.isfinite(norm))
        if self.max_ratio is not None and moved:
            bound = min(bound, self.max_ratio * moved[(len(moved) - 1) // 2])
        return min(bound, np.finfo(np.float64).max)


def update_norm(current: Parameters, parameters: Parameters) -> float:
    """Euclidean norm of `parameters - current` over all arrays."""
    return update_norms(current, [parameters])[0]


def update_norms(current: Parameters, given: Sequence[Parameters]) -> list[float]:
    """`update_norm` of each; stretch by stretch, so that `current` is fetched from memory once for all of them."""
    totals = [0.0] * len(given)
    for name, value in current.items():
        start = value.reshape(-1)
        moved = [parameters[name].reshape(-1) for parameters in given]
        change = np.empty(min(value.size, LONGEST_BLOCK), dtype=np.promote_types(value.dtype, np.float32))
        with np.errstate(over="ignore", invalid="ignore"):
            for block in blocks(value.size):
                part = change[: block.stop - block.start]
                for place, vector in enumerate(moved):
                    np.subtract(vector[block], start[block], out=part, dtype=part.dtype)
                    totals[place] += squared_length(part)
    return [math.sqrt(total) for total in totals]


def scaled(current: Parameters, parameters: Parameters, factor: float) -> dict[str, NDArray[Any]]:
    """`current` moved by `factor` times the update."""
    result = {}
    for name, value in current.items():
        wide = value.astype(np.float64)
        result[name] = (wide + factor * (parameters[name].astype(np.float64) - wide)).astype(value.dtype)
    return result
