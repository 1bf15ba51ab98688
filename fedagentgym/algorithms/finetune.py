"""Fine-tuning after averaging: the simplest way to personal policies, and the baseline of all other ways.

    rounds as in FedAgent;  after every `finetune_every`-th one
    server   send the mean theta to all clients
    client   train theta for `finetune_steps` policy steps on its own tasks and keep the result, with which it plays

Fine-tuned parameters are not sent back, and the next round begins from theta. All clients fine-tune, also those that did not
take part in the round. A schedule of the learning rate begins anew with every fine-tuning, and ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from fedagentgym.agents.model.names import VALUE_HEAD
from fedagentgym.algorithms.averaging import AveragingSettings
from fedagentgym.algorithms.base import CONTROL_BYTES
from fedagentgym.algorithms.card import Card, Scale, Work
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.personal import PERSONAL
from fedagentgym.algorithms.reports import read_reports, sum_costs
from fedagentgym.algorithms.runtime import Site
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Form, Message, Parameters

TUNED = "tuned"
"""In the server's memory: True if the clients' fine-tuned parameters follow from the present mean."""


class FineTuneSettings(AveragingSettings):
    """`algorithm: {name: fedavg-finetune, finetune_steps: 10, finetune_every: 4}`."""

    name: Literal["fedavg-finetune"] = "fedavg-finetune"
    finetune_steps: int = Field(default=10, ge=1, description="policy steps of every client after averaging")
    finetune_every: int = Field(default=1, ge=1, description="rounds from one fine-tuning to the next")


class FineTune(Averaging[FineTuneSettings]):
    """FedAgent, followed by fine-tuning at every client."""

    settings_class: ClassVar[type[Settings]] = FineTuneSettings
    kept_sets = (PERSONAL,)

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        train = super().make_operations()["train"]
        tune = Operation(self.finetune, train.request, Form(text=CONTROL_BYTES), train.state)
        return {"train": train, "finetune": tune}

    def initial_state(self) -> ServerState:
        return replace(super().initial_state(), memory={TUNED: False})

    def client_parameters(self, state: ServerState, client: int, kept: Message) -> Parameters:
        """The client's fine-tuned parameters, if they follow from the present mean."""
        own = kept.sets.get(PERSONAL) if state.memory[TUNED] else None
        return own or state.parameters

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """A round of averaging, and fine-tuning if it is due."""
        averaged = super().run_round(state, this_round)
        due = this_round.number % self.settings.finetune_every == 0
        after = replace(averaged.state, memory={**averaged.state.memory, TUNED: due})
        if not due:
            return replace(averaged, state=after)
        control = {"step": this_round.number * self.settings.local_steps}
        asked = dict.fromkeys(this_round.clients.ids, Message(weights=after.parameters, control=control))
        replies = this_round.clients.call("finetune", asked)
        client = Scale(self.learning, rows_per_episode=self.runtime.env.max_turns)
        work = client.count_local_work(self.settings.finetune_steps)
        reports = read_reports(replies, dict.fromkeys(replies, work), this_round.clients)
        if this_round.secret is not None:
            return replace(averaged, state=after)
        costs = {name: averaged.metrics.get(name, 0.0) + value for name, value in sum_costs(reports.values()).items()}
        return replace(averaged, state=after, metrics={**averaged.metrics, **costs})

    def finetune(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Take `finetune_steps` policy steps from the mean, with a new optimizer; a value head of the client's own is kept."""
        start = self.read_start(state, message, client)
        kept_head = {name: array for name, array in start.optimizer.items() if name.startswith(VALUE_HEAD)}
        start = replace(start, optimizer=kept_head)
        local = self.open_learner(client.resources, start, own_steps=self.settings.finetune_steps)
        report = local.run(self.settings.finetune_steps, seed=client.derive("finetune"))
        kept = Message(sets={**state.sets, PERSONAL: local.get_state(optimizer=False).weights})
        return kept, Message(report={"metrics": report.metrics})

    @classmethod
    def describe(cls, settings: FineTuneSettings, scale: Scale) -> Card:
        """Return the card of averaging, with a round's share of the fine-tuning."""
        card = super().describe(settings, scale)
        assert card.round is not None
        tuned = (scale.count_local_work(settings.finetune_steps) + Work(models_down=1)) * scale.clients
        return replace(card, round=card.round + tuned.share(settings.finetune_every))
