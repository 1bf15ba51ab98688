"""FedSA-LoRA: one factor of an adapter is averaged, the other stays with its client (Guo et al. 2025, arXiv:2410.01463).

    server   send A to every k in S
    client   train (A, B_k) for `local_steps` policy steps; keep B_k; return A_k
    server   A = mean of A_k

`share: B` shares the other factor, as a control for the paper's choice. Every client ends with a policy of its own. The policy
that is evaluated in the unchanged environment and exported has the initial personal factor: with `share: A` this is B = 0, so
that it is the initial policy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from fedagentgym.agents.model.names import HIGH, LOW
from fedagentgym.algorithms.averaging import AveragingSettings
from fedagentgym.algorithms.card import Card, Scale
from fedagentgym.algorithms.personal import Personal
from fedagentgym.algorithms.runtime import Runtime
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.federation.message import Array, Parameters


class FedSALoRASettings(AveragingSettings):
    """`algorithm: {name: fedsa-lora}` with `agent: {adapter: {rank: 8}}`."""

    name: Literal["fedsa-lora"] = "fedsa-lora"
    share: Literal["A", "B"] = Field(
        default="A", description="the factor that is averaged; the other stays with its client"
    )


class FedSALoRA(Personal[FedSALoRASettings]):
    """Federated averaging of one factor of an adapter."""

    settings_class: ClassVar[type[Settings]] = FedSALoRASettings

    def __init__(self, settings: FedSALoRASettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        adapter = runtime.spec.agent.adapter
        if adapter is None or adapter.train != "both":
            raise OptionError(
                "fedsa-lora divides the two trained factors of a LoRA adapter: set agent.adapter to {rank: 8}"
            )

    def split(self, weights: Parameters) -> tuple[dict[str, Array], dict[str, Array]]:
        kept = HIGH if self.settings.share == "A" else LOW
        own = {name: array for name, array in weights.items() if kept in name}
        return {name: array for name, array in weights.items() if name not in own}, own

    @classmethod
    def describe(cls, settings: FedSALoRASettings, scale: Scale) -> Card:
        """Return the card: one factor is sent."""
        return replace(super().describe(settings, scale), factors=settings.share)
