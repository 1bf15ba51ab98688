"""FLoRA: the clients' adapters are merged into the base, and the next round begins with a new one (Wang et al. 2024).

    server   send (A, B) and D to every k in S, where B = 0
    client   train (A_k, B_k) on W + D + s B_k A_k; return them
    server   D = D + s * sum of p_k B_k A_k    (the product of the stacked factors [B_1 .. B_K] and [p_1 A_1; ..; p_K A_K])
    server   B = 0;  A is drawn anew from the stream of the round, or with `draw: first` stays as it was first drawn

`draw: first` is the control of the new draw: everything else of FLoRA without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedagentgym.algorithms.adapters import (
    AdapterRule,
    BaseChanging,
    Matrix,
    Pair,
    ProductSettings,
    draw_low,
    find_low,
)
from fedagentgym.algorithms.averaging import AcceptedReply
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import generator
from fedagentgym.federation.algorithm import Round, ServerState
from fedagentgym.federation.message import Parameters


class FLoRARule(AdapterRule):
    """No product is left in the factors: B is zero, A as before."""

    name: Literal["flora"] = "flora"
    changes_base: ClassVar[bool] = True

    def choose(self, target: Matrix, mean: Pair, before: Pair) -> Pair:
        return Pair(before.low, np.zeros_like(before.high))


class FLoRASettings(ProductSettings):
    """`algorithm: {name: flora}` with `agent: {adapter: {rank: 8}}`."""

    name: Literal["flora"] = "flora"
    draw: Literal["anew", "first"] = Field(
        default="anew", description="A of the next round: drawn anew, or as it was first drawn"
    )

    @property
    def rule(self) -> FLoRARule:
        return FLoRARule(**self.rule_options)


class FLoRA(BaseChanging[FLoRASettings]):
    """Merging of stacked adapters."""

    settings_class: ClassVar[type[Settings]] = FLoRASettings

    def draws_own(self, number: int) -> bool:
        return self.settings.init == "each" and (number == 1 or self.settings.draw == "anew")

    def combine(
        self, state: ServerState, used: Sequence[AcceptedReply], updates: Iterator[Parameters], this_round: Round
    ) -> ServerState:
        """Merge the clients' products, and draw A for the next round."""
        after = super().combine(state, used, updates, this_round)
        if not used or self.settings.draw == "first":
            return after
        parameters, seed = dict(after.parameters), this_round.derive("adapter")
        for name in find_low(parameters):
            drawn = draw_low(parameters[name].astype(np.float64), generator(seed, name))
            parameters[name] = np.asarray(drawn, dtype=parameters[name].dtype)
        return replace(after, parameters=parameters)
