"""q-FedAvg: clients with a greater loss count for more, by its power q (q-FFL; Li et al. 2020, Algorithm 2).

    Delta_k  =  F_k^q L (theta - theta_k)
    h_k      =  q F_k^(q-1) |L (theta - theta_k)|^2  +  L F_k^q
    theta    =  theta - sum_k p_k Delta_k / sum_k p_k h_k

which is a step from theta towards the mean of theta_k weighted by p_k F_k^q, the shorter the further clients moved. p_k is the
client's weight, 1 unless the method weighs its clients. Here F_k is 1 - success over the episodes that the client plays to
learn from; the paper takes the loss of theta before the client moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedagentgym.base.errors import DataError
from fedagentgym.federation.aggregation import LossRule, RunningMean
from fedagentgym.federation.algorithm import ServerState
from fedagentgym.federation.message import Parameters, update_norm


class QFedAvg(LossRule):
    """A mean in which clients that fail more count for more; with `q: 0` it is the mean, bit for bit."""

    name: Literal["qfedavg"] = "qfedavg"
    uses_weights: ClassVar[bool] = True
    q: float = Field(default=1.0, ge=0.0, le=20.0, description="power of the clients' losses; 0: they do not count")
    lipschitz: float = Field(
        default=1.0,
        gt=0.0,
        description="L: the greater, the shorter the step; the paper takes 1 / learning rate of SGD",
    )
    epsilon: float = Field(
        default=1e-10,
        gt=0.0,
        description="added to every loss; for q below 1, a client without failures makes the step almost 0",
    )

    def begin(self, state: ServerState, losses: Sequence[float] = ()) -> QFedAvgStep:
        return QFedAvgStep(state, self, losses)


class QFedAvgStep:
    """The running mean, and the share of the way to it that the server's step covers."""

    def __init__(self, state: ServerState, rule: QFedAvg, losses: Sequence[float]) -> None:
        self._state, self._rule, self._losses = state, rule, iter(losses)
        self._mean = RunningMean(state.parameters)
        self._scale = self._curvature = 0.0

    def add(self, update: Parameters, weight: float) -> None:
        loss = next(self._losses, None)
        if loss is None:
            raise DataError(f"{self._rule.name} needs the loss of every client")
        loss += self._rule.epsilon
        scale, q = weight * loss**self._rule.q, self._rule.q
        self._mean.add(update, scale)
        self._scale += scale
        if q > 0.0:
            distance = update_norm(self._state.parameters, update)
            self._curvature += weight * q * loss ** (q - 1.0) * self._rule.lipschitz * distance**2

    def finish(self) -> ServerState:
        if self._curvature == 0.0:
            return replace(self._state, parameters=self._mean.compute())
        share = self._scale / (self._scale + self._curvature)
        mean, moved = self._mean.compute(narrow=False), {}
        for name, value in self._state.parameters.items():
            wide = value.astype(np.float64)
            moved[name] = np.asarray(wide + share * (mean[name] - wide), dtype=value.dtype)
        return replace(self._state, parameters=moved)
