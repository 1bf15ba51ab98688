"""FedAgent: federated averaging of policies that clients improve by reinforcement learning (Algorithm 1 of the paper).

    server   for t = 1..T:                                                            (lines 1-2)
    server     draw S_t: M distinct clients, uniformly                                (line 3, by the federation)
    server     send theta to every k in S_t                                           (line 4)
    client     theta_k = theta; tau times: roll out on own tasks, one GRPO step       (lines 6-11)
    client     return theta_k                                                         (line 12)
    server     theta = mean of theta_k over the clients that answered                 (line 14)

theta is what the agent trains: all weights, or the factors of its LoRA adapter. A round costs 2 * M * bytes(theta).
Options beyond the paper: other aggregation rules, bounds on updates, FedProx's proximal term, and an optimizer whose state is
kept from round to round in the client's state (`learning.keep_optimizer`). `averaging.py` has them, and the steps of a round.

Two baselines of the papers differ in a default. FedAvg of local GRPO weights clients by their numbers of tasks, as McMahan does.
The FedMOA paper calls this baseline "FedGRPO" (FedMOA without its additions), and PubSwap compares with it. It is not the method
`fedgrpo`, in which weights never leave the server. FedProx adds the penalty mu / 2 * ||theta_k - theta||^2 on the distance from
the round's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from fedagentgym.algorithms.averaging import AveragingSettings, AveragingSteps, L, WeightedSettings
from fedagentgym.algorithms.base import CONTROL_BYTES
from fedagentgym.algorithms.card import METRICS, Card, Scale, Sent
from fedagentgym.algorithms.runtime import Site
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import LossRule
from fedagentgym.federation.algorithm import OPTIMIZER, Round, RoundResult, ServerState
from fedagentgym.federation.checks import ASSUMED
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Form, Message

PARAMETERS = Sent("parameters", "the parameters after local training", "the server, their mean by all clients")


class Averaging(AveragingSteps[L]):
    """Base class of methods whose clients train on their own tasks and whose server averages their parameters, as FedAgent does.

    A method overrides the step in which it differs: `train_client` or `open_learner` at the clients, `client_weights` or
    `combine` at the server, or all of `run_round`.

    Attributes:
        deciding_metrics: Reported metrics that decide something, such as a client's weight, each with its least and greatest
            value; a reply without one, or with another value, is refused. All other metrics are shown, not checked.
        sent_sets: Names of sets of arrays that are sent with the parameters, in both directions, with the parameters' shapes.
        kept_sets: Names of sets of arrays that clients keep from round to round, with the parameters' shapes.
    """

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Send theta to the participants, and make the mean of what they return the next theta.

        Args:
            state: The global state.
            this_round: The round.

        Returns:
            The next state, and the record of the round.
        """
        with self.train_participants(state, this_round) as replies:
            after = self.combine(state, replies.used, replies.read(), this_round)
        return self.report(after, replies, this_round)

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Train for `local_steps` steps on the client's own tasks; runs where the client is.

        Args:
            state: The state that the client kept.
            message: The server's message.
            client: Number, round, streams and resources of the client.

        Returns:
            The client's next state, and its reply.
        """
        local = self.open_learner(client.resources, self.read_start(state, message, client))
        report = local.run(self.settings.local_steps, seed=client.derive("train"))
        after = local.get_state()
        kept = Message(sets={OPTIMIZER: after.optimizer}) if self.learning.keeps_state else state
        return kept, self.make_reply(client, local, after, report)

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        """Return the one operation of clients, `train`."""
        forms = self.runtime.make_weight_forms()
        request = Form(forms, sets=dict.fromkeys(self.sent_sets, forms), text=CONTROL_BYTES, report=0)
        reply = replace(request, report=self.report_bytes)
        return {"train": Operation(self.train_client, request, reply, self.make_state_form())}

    @classmethod
    def describe(cls, settings: L, scale: Scale) -> Card:
        """Return the card: every participant trains for `local_steps` and exchanges its parameters once.

        `gives_weights` is true for a method that overrides `client_weights`; a method whose weights are equal under some settings
        replaces this field.
        """
        return replace(
            super().describe(settings, scale),
            round=replace(scale.count_local_work(settings.local_steps), models_down=1, models_up=1) * scale.asked,
            sent=(PARAMETERS, METRICS),
            kept_copies=("start of the round",) if settings.proximal > 0 else (),
            needs_counts=settings.privacy is None and settings.weigh([1.0, 3.0]) != settings.weigh([1.0, 1.0]),
            needs_metrics=bool(cls.deciding_metrics) or isinstance(settings.rule, LossRule),
            gives_weights=cls.client_weights is not AveragingSteps.client_weights,
            trains_local_models=True,
            assumed=ASSUMED,
        )


class FedAgentSettings(AveragingSettings):
    """`algorithm: {name: fedagent, ...}`."""

    name: Literal["fedagent"] = "fedagent"


class FedAgent(Averaging[FedAgentSettings]):
    """Federated averaging of policies that clients train by GRPO on their own tasks."""

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
