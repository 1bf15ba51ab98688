"""FedAvg of local GRPO: the plain baseline of the papers, clients weighted by their numbers of tasks.

FedAgent with McMahan's weights. The FedMOA paper calls it "FedGRPO" (without all of FedMOA's additions), and PubSwap compares
with it. It differs from the method FedGRPO, in which weights never leave the server.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedagentgym.algorithms.averaging import Averaging, AveragingSettings
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import Aggregation, WeightedMean


class FedAvgGRPOSettings(AveragingSettings):
    """`algorithm: {name: fedavg-grpo, ...}`."""

    name: Literal["fedavg-grpo"] = "fedavg-grpo"
    aggregation: Aggregation = WeightedMean()


class FedAvgGRPO(Averaging[FedAvgGRPOSettings]):
    """FedAgent with clients weighted by their numbers of tasks."""

    settings_class: ClassVar[type[Settings]] = FedAvgGRPOSettings
