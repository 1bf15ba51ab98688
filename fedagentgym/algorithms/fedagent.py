"""FedAgent: federated averaging of policies that clients improve by reinforcement learning (Algorithm 1 of the paper).

    server   for t = 1..T:                                                            (lines 1-2)
    server     draw S_t: M distinct clients, uniformly                                (line 3, the federation's doing)
    server     send theta to every k in S_t                                           (line 4)
    client     theta_k = theta; tau times: roll out on own tasks, one GRPO step       (lines 6-11)
    client     return theta_k                                                         (line 12)
    server     theta = mean of theta_k over the clients that answered                 (line 14)

theta is what the agent trains: all weights, or the factors of its LoRA adapter. A round costs 2 * M * bytes(theta).
Options beyond the paper: other aggregation rules, bounds on updates, FedProx's proximal term, and an optimizer whose state is
kept from round to round in the client's state (`learning.keep_optimizer`). They are implemented in `averaging.py`.

Two baselines of the papers differ in a default. FedAvg of local GRPO weights clients by their numbers of tasks, as McMahan does.
The FedMOA paper calls it "FedGRPO" (without all of FedMOA's additions), and PubSwap compares with it: it is not the method
FedGRPO, in which weights never leave the server. FedProx adds the penalty mu / 2 * ||theta_k - theta||^2 on the distance from the
round's start.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedagentgym.algorithms.averaging import Averaging, AveragingSettings, WeightedSettings
from fedagentgym.base.settings import Settings


class FedAgentSettings(AveragingSettings):
    """`algorithm: {name: fedagent, ...}`."""

    name: Literal["fedagent"] = "fedagent"


class FedAgent(Averaging[FedAgentSettings]):
    """Federated averaging of what clients learn by GRPO on their own tasks."""

    settings_class: ClassVar[type[Settings]] = FedAgentSettings


class FedAvgGRPOSettings(WeightedSettings):
    """`algorithm: {name: fedavg-grpo, ...}`."""

    name: Literal["fedavg-grpo"] = "fedavg-grpo"


class FedAvgGRPO(Averaging[FedAvgGRPOSettings]):
    """FedAgent with clients weighted by their numbers of tasks."""

    settings_class: ClassVar[type[Settings]] = FedAvgGRPOSettings


class FedProxSettings(AveragingSettings):
    """`algorithm: {name: fedprox, proximal: 0.01}`; the papers try 0.001, 0.01 and 0.1."""

    name: Literal["fedprox"] = "fedprox"
    proximal: float = Field(default=0.01, ge=0.0, description="mu: pulls a client back to the round's start")


class FedProx(Averaging[FedProxSettings]):
    """FedAgent with a proximal term on by default."""

    settings_class: ClassVar[type[Settings]] = FedProxSettings
