"""FLoRA: the clients' adapters are merged into the base, and the next round begins with a new one (Wang et al. 2024).

    server   send D to every k in S; clients know A, and B = 0
    client   train (A_k, B_k) on W + D + s B_k A_k; return them
    server   D = D + s * sum of p_k B_k A_k    (the product of the stacked factors [B_1 .. B_K] and [p_1 A_1; ..; p_K A_K])
    server   B = 0;  A is drawn anew from the stream of the round, or with `draw: first` stays as it was first drawn

The addition to D is sent as these factors while they have fewer numbers than D. `draw: first` is the control for the new draw:
FLoRA without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedagentgym.algorithms.adapters import AdapterRule, Merging, ProductSettings, draw_low, find_low
from fedagentgym.algorithms.card import BaseRank
from fedagentgym.algorithms.factors import Matrix, Pair
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import derive, generator
from fedagentgym.federation.message import Array


class FLoRARule(AdapterRule):
    """No product is left in the factors: B is zero, A as before."""

    name: Literal["flora"] = "flora"
    changes_base: ClassVar[bool] = True

    def choose(self, target: Matrix, mean: Pair, before: Pair) -> Pair:
        return Pair(before.low, np.zeros_like(before.high))

    def factorize(self, clients: Sequence[Pair], weights: Sequence[float], chosen: Pair) -> Pair | None:
        if self.momentum > 0:
            return None
        rows = [np.any(client.low, axis=1) for client in clients]  # the rows of the client's rank
        shares = [self.step * weight / sum(weights) for weight in weights]
        return Pair(
            np.vstack([client.low[own] for client, own in zip(clients, rows, strict=True)]),
            np.hstack([share * one.high[:, own] for share, one, own in zip(shares, clients, rows, strict=True)]),
        )


class FLoRASettings(ProductSettings):
    """`algorithm: {name: flora}` with `agent: {adapter: {rank: 8}}`."""

    name: Literal["flora"] = "flora"
    draw: Literal["anew", "first"] = Field(
        default="anew", description="A of the next round: drawn anew, or as it was first drawn"
    )

    @property
    def rule(self) -> FLoRARule:
        return FLoRARule(**self.rule_options)


class FLoRA(Merging[FLoRASettings]):
    """Merging of stacked adapters."""

    settings_class: ClassVar[type[Settings]] = FLoRASettings

    @classmethod
    def find_base_rank(cls, settings: FLoRASettings) -> BaseRank:
        return "full" if settings.server_momentum > 0 else "clients"

    def draws_own(self, number: int) -> bool:
        return self.settings.init == "each" and (number == 1 or self.settings.draw == "anew")

    def make_factors(self, merged: int, seed: int) -> dict[str, Array]:
        """Make the factors that a round begins with: after a merge A is drawn from the stream of the merged round."""
        factors = super().make_factors(merged, seed)
        if merged == 0 or self.settings.draw == "first":
            return factors
        stream = derive(seed, "server", merged, "adapter")
        for name in find_low(factors):
            drawn = draw_low(factors[name].astype(np.float64), generator(stream, name))
            factors[name] = np.asarray(drawn, dtype=factors[name].dtype)
        return factors
