"""FedEx-LoRA: the factors are averaged; what their product lacks of the mean product goes into the base (Singhal et al. 2025).

    server   send (A, B) and D to every k in S
    client   train (A_k, B_k) on W + D + s B_k A_k; return them
    server   A = mean of A_k;  B = mean of B_k;  M = sum of p_k B_k A_k
    server   D = D + s (M - B A)

So the policy W + D + s B A has the mean of the clients' products, exactly.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedagentgym.algorithms.adapters import AdapterRule, BaseChanging, Matrix, Pair, ProductSettings, keep_low
from fedagentgym.base.settings import Settings


class FedExRule(AdapterRule):
    """The means of the factors, and A as it was in rows that no client has."""

    name: Literal["fedex-lora"] = "fedex-lora"
    changes_base: ClassVar[bool] = True

    def choose(self, target: Matrix, mean: Pair, before: Pair) -> Pair:
        return keep_low(mean, before)


class FedExLoRASettings(ProductSettings):
    """`algorithm: {name: fedex-lora}` with `agent: {adapter: {rank: 8}}`."""

    name: Literal["fedex-lora"] = "fedex-lora"

    @property
    def rule(self) -> FedExRule:
        return FedExRule(**self.rule_options)


class FedExLoRA(BaseChanging[FedExLoRASettings]):
    """FedIT with its error in the base."""

    settings_class: ClassVar[type[Settings]] = FedExLoRASettings
