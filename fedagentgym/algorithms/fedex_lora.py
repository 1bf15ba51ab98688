"""FedEx-LoRA: factors are averaged, and the error of the averaged product goes into the base (Singhal et al. 2025).

    server   send (A, B) and D to every k in S
    client   train (A_k, B_k) on W + D + s B_k A_k; return them
    server   A = mean of A_k;  B = mean of B_k;  M = sum of p_k B_k A_k
    server   D = D + s (M - B A)

So the policy W + D + s B A has exactly the mean of the clients' products. The addition of a round to D is sent as factors while
these have fewer numbers than D: with any one client l,

    M - B A  =  sum over k != l of p_k (B_k - B) (A_k - A_l)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from fedagentgym.algorithms.adapters import AdapterRule, BaseChanging, ProductSettings, keep_low
from fedagentgym.algorithms.card import BaseRank
from fedagentgym.algorithms.factors import Matrix, Pair
from fedagentgym.base.settings import Settings


class FedExRule(AdapterRule):
    """The means of the factors, and A as it was in rows that no client has."""

    name: Literal["fedex-lora"] = "fedex-lora"
    changes_base: ClassVar[bool] = True

    def choose(self, target: Matrix, mean: Pair, before: Pair) -> Pair:
        return keep_low(mean, before)

    def factorize(self, clients: Sequence[Pair], weights: Sequence[float], chosen: Pair) -> Pair | None:
        if self.step != 1 or self.momentum > 0:
            return None
        ranks = [np.any(client.low, axis=1) for client in clients]
        last = min(range(len(clients)), key=lambda client: ranks[client].sum())  # the lowest, so that ranks do not grow
        lows, highs = [chosen.low[:0]], [chosen.high[:, :0]]
        for number, (client, weight) in enumerate(zip(clients, weights, strict=True)):
            if number != last:
                rows = ranks[number] | ranks[last]
                lows.append((client.low - clients[last].low)[rows])
                highs.append(weight / sum(weights) * (client.high - chosen.high)[:, rows])
        return Pair(np.vstack(lows), np.hstack(highs))


class FedExLoRASettings(ProductSettings):
    """`algorithm: {name: fedex-lora}` with `agent: {adapter: {rank: 8}}`."""

    name: Literal["fedex-lora"] = "fedex-lora"

    @property
    def rule(self) -> FedExRule:
        return FedExRule(**self.rule_options)


class FedExLoRA(BaseChanging[FedExLoRASettings]):
    """FedIT whose aggregation error is added to the base."""

    settings_class: ClassVar[type[Settings]] = FedExLoRASettings

    @classmethod
    def find_base_rank(cls, settings: FedExLoRASettings) -> BaseRank:
        return "full" if settings.server_step != 1 or settings.server_momentum > 0 else "clients but one"
