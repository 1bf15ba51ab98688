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
"""

from __future__ import annotations

from typing import ClassVar, Literal

from fedagentgym.algorithms.averaging import Averaging, AveragingSettings
from fedagentgym.base.settings import Settings


class FedAgentSettings(AveragingSettings):
    """`algorithm: {name: fedagent, ...}`."""

    name: Literal["fedagent"] = "fedagent"


class FedAgent(Averaging[FedAgentSettings]):
    """Federated averaging of what clients learn by GRPO on their own tasks."""

    settings_class: ClassVar[type[Settings]] = FedAgentSettings
