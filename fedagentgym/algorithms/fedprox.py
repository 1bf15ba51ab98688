"""FedProx: FedAgent with the penalty mu / 2 * ||theta_k - theta||^2 on the distance from the round's start."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedagentgym.algorithms.averaging import Averaging, AveragingSettings
from fedagentgym.base.settings import Settings


class FedProxSettings(AveragingSettings):
    """`algorithm: {name: fedprox, proximal: 0.01}`; the papers try 0.001, 0.01 and 0.1."""

    name: Literal["fedprox"] = "fedprox"
    proximal: float = Field(default=0.01, ge=0.0, description="mu: pulls a client back to the round's start")


class FedProx(Averaging[FedProxSettings]):
    """FedAgent with a proximal term on by default."""

    settings_class: ClassVar[type[Settings]] = FedProxSettings
