"""Krum, which takes the update that lies closest to its nearest neighbours, and Multi-Krum (Blanchard et al. 2017).

    score of k  =  sum of the n - f - 2 smallest squared distances from theta_k to the other theta_j
    theta       =  Krum: the theta_k with the smallest score; of equal ones the first
                   Multi-Krum: the plain mean of the m theta_k with the smallest scores

n clients reply and f of them may send anything; the published guarantee needs n >= 2 f + 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedagentgym.base.errors import DataError
from fedagentgym.federation.aggregation import AggregationRule, RunningMean
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.message import Parameters, squared_distance


class Krum(AggregationRule):
    """The update with the smallest sum of squared distances to its nearest neighbours."""

    name: Literal["krum"] = "krum"
    needs_all: ClassVar[bool] = True
    byzantine: int = Field(default=1, ge=0, description="f: clients of a round that may send anything")

    @property
    def least_updates(self) -> int:
        return 2 * self.byzantine + 3 if self.byzantine else 1

    def count_chosen(self, updates: int) -> int:
        """Return how many of this number of updates are averaged."""
        return 1

    def begin(self, state: ServerState) -> KrumStep:
        return KrumStep(state, self)


class MultiKrum(Krum):
    """The mean of the updates that Krum would choose first; with `chosen: 1` it is Krum."""

    name: Literal["multi_krum"] = "multi_krum"  # type: ignore[assignment]
    chosen: int | None = Field(default=None, ge=1, description="m: updates that are averaged; null: all but f")

    @property
    def least_updates(self) -> int:
        return max(super().least_updates, self.byzantine + (self.chosen or 1))

    def count_chosen(self, updates: int) -> int:
        return self.chosen or updates - self.byzantine


class KrumStep:
    """Collects all updates of a round and takes the mean of the best; weights are ignored."""

    def __init__(self, state: ServerState, rule: Krum) -> None:
        self._state, self._rule = state, rule
        self._updates: list[Parameters] = []

    def add(self, update: Parameters, weight: float) -> None:
        self._updates.append(update)

    def finish(self) -> ServerState:
        count, rule = len(self._updates), self._rule
        if not count:
            raise DataError("cannot aggregate: no update was added")
        if count < rule.least_updates:
            raise DataError(
                f"{rule.name} with byzantine: {rule.byzantine} needs {rule.least_updates} updates, and there are {count}"
            )
        # the sum of each update's smallest squared distances to the others
        distances = np.full((count, count), np.inf)
        for place, update in enumerate(self._updates):
            for other in range(place):
                distance = sum(squared_distance(value, self._updates[other][name]) for name, value in update.items())
                distances[place, other] = distances[other, place] = distance
        distances.sort(axis=1)  # an update's distance to itself is infinite, so it is last
        scores = distances[:, : min(max(count - rule.byzantine - 2, 1), count - 1)].sum(axis=1)
        mean = RunningMean(self._state.parameters)
        for place in sorted(np.argsort(scores, kind="stable")[: rule.count_chosen(count)].tolist()):
            mean.add(self._updates[place])
        return replace(self._state, parameters=mean.compute())
