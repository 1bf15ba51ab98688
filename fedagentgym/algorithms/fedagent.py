"""FedAgent: federated averaging of policies that clients improve by reinforcement learning (Algorithm 1 of the paper).

    server   for t = 1..T:                                                            (lines 1-2)
    server     draw S_t: M distinct clients, uniformly                                (line 3, the federation's doing)
    server     send theta to every k in S_t                                           (line 4)
    client     theta_k = theta; tau times: roll out on own tasks, one GRPO step       (lines 6-11)
    client     return theta_k                                                         (line 12)
    server     theta = mean of theta_k over the clients that answered                 (line 14)

theta is whatever the agent trains: all weights, or the factors of its LoRA adapter. A round costs 2 * M * bytes(theta).
Options beyond the paper: other aggregation rules, bounds on updates, FedProx's proximal term, and an optimizer that survives
from round to round in the client's state (`learning.keep_optimizer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.algorithms.support.replies import contributions, episodes_of, metrics_of
from fedagentgym.algorithms.support.runtime import Site, Workbench
from fedagentgym.algorithms.support.state_arrays import OPTIMIZER, marked, unmarked, writable
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import Aggregation, Contribution, Mean
from fedagentgym.federation.algorithm import Round, RoundResult
from fedagentgym.federation.checks import UpdateChecks, update_norm
from fedagentgym.federation.clients import answered
from fedagentgym.federation.message import REPORT_BYTES, ArrayForm, Form, Message, given_away
from fedagentgym.federation.operation import ClientContext, Operation
from fedagentgym.federation.privacy import PrivacySettings, epsilon, private_mean
from fedagentgym.learning.local import LocalTraining, SiteState
from fedagentgym.learning.settings import LearningSettings

CONTROL_BYTES = 1024
MEMORY = "memory/"


class FedAgentSettings(Settings):
    """`algorithm: {name: fedagent, ...}`."""

    name: Literal["fedagent"] = "fedagent"
    local_steps: int = Field(
        default=3, ge=1, description="policy steps of a client in a round (tau; the paper's local epochs)"
    )
    aggregation: Aggregation = Mean()
    proximal: float = Field(default=0.0, ge=0.0, description="FedProx's mu: pulls a client back to the round's start")
    checks: UpdateChecks = Field(default=UpdateChecks(), description="which updates are refused or shortened")
    privacy: PrivacySettings | None = Field(
        default=None, description="clip every update and add noise to their mean, in place of checks and aggregation"
    )

    @model_validator(mode="after")
    def _one_average(self) -> Self:
        if self.privacy is not None and self.aggregation.name != "mean":
            raise ValueError(f"privacy is for the plain mean: it cannot be combined with {self.aggregation.name}")
        return self


class FedAgent:
    """Server side and client operation of FedAgent; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = FedAgentSettings
    metered: ClassVar[bool] = True

    def __init__(self, settings: Any, bench: Workbench) -> None:
        self.settings, self.bench = settings, bench
        self._operations: dict[str, Operation] = {}

    # ---- what the federation asks ---------------------------------------------------------------------------------

    def client_ids(self) -> Sequence[int]:
        return range(len(self.bench.client_split))

    @property
    def operations(self) -> Mapping[str, Operation]:
        if not self._operations:
            shown = REPORT_BYTES * (1 + self.bench.bench.sampled_episodes)
            request, reply = (Form(self.bench.forms(), CONTROL_BYTES, report) for report in (0, shown))
            self._operations["train"] = Operation(self.train, request, reply, self._state_form())
        return self._operations

    def resources(self, client: int) -> Site:
        return self.bench.site(client)

    def initial(self) -> Message:
        return Message(weights=self.bench.initial_weights)

    def prepare(self, state: Message, round: Round) -> RoundResult:
        return RoundResult(state)

    def policy(self, state: Message) -> Mapping[str, NDArray[Any]]:
        return state.weights

    # ---- server ---------------------------------------------------------------------------------------------------

    def round(self, state: Message, round: Round) -> RoundResult:
        """Lines 3-5 and 14: send theta, take what comes back, check it, average it."""
        step = (round.number - 1) * self.settings.local_steps
        message = Message(weights=state.weights, control={"step": step})
        answers = answered(round.clients.call("train", dict.fromkeys(round.participants, message)))
        given, malformed = contributions(answers)
        round.clients.refuse(malformed)
        answers = {each.client: answers[each.client] for each in given}
        after, norms, spent = self._combined(state, given, round)
        return RoundResult(
            after,
            metrics={**client_means(answers, norms), **spent},
            clients={k: {**metrics_of(answer), "update_norm": norms[k]} for k, answer in answers.items()},
            episodes=episodes_of(answers),
        )

    def _combined(
        self, state: Message, given: list[Contribution], round: Round
    ) -> tuple[Message, dict[int, float], dict[str, float]]:
        """The next global state, the norm of every update, and what privacy was spent."""
        if (privacy := self.settings.privacy) is not None:
            asked, clients = len(round.participants), len(round.clients.ids)
            theta = private_mean(state.weights, given, asked, privacy, round.generator("privacy"))
            norms = {each.client: update_norm(state.weights, each.parameters) for each in given}
            spent = epsilon(privacy, rounds=round.number, asked=asked, clients=clients)
            return Message(weights=theta), norms, {"privacy/epsilon": spent}
        good, refused, norms = self.settings.checks.apply(state.weights, given)
        round.clients.refuse(refused)
        return self.aggregated(state, good), norms, {}

    def aggregated(self, state: Message, given: Sequence[Contribution]) -> Message:
        """The next global state by the chosen rule, with what the rule remembers (a server optimizer's moments).

        A quorum of 0 admits a round that nobody brings anything to: then nothing changes.
        """
        if not given:
            return state
        theta, memory = self.settings.aggregation.apply(state.weights, given, unmarked(MEMORY, state.control))
        return Message(weights=theta, control=marked(MEMORY, memory))

    # ---- client ---------------------------------------------------------------------------------------------------

    def train(self, state: Message, message: Message, client: ClientContext) -> tuple[Message, Message]:
        """Lines 6-12: tau policy steps from theta on the client's own tasks."""
        site: Site = client.resources
        local = self.started(site, state, message)
        report = local.run(self.settings.local_steps, seed=client.derive("train"))
        after = local.state()
        kept = Message(weights=marked(OPTIMIZER, after.optimizer))
        answer = Message(
            weights=given_away(after.weights),
            control={"examples": site.examples},
            report={"metrics": report.metrics, "episodes": self.sampled(report.groups, client)},
        )
        return (kept if self.learning.keep_optimizer else state), answer

    def started(self, site: Site, state: Message, message: Message) -> LocalTraining:
        """A client's training at the start of a round: theta as sent, the moments that the client has kept."""
        moments = writable(unmarked(OPTIMIZER, state.weights)) if self.learning.keep_optimizer else {}
        return self.taken_up(site, SiteState(writable(message.weights), moments, step=int(message.control["step"])))

    def taken_up(self, site: Site, start: SiteState) -> LocalTraining:
        """A client's training from any state, with what the method says of it."""
        run_steps = self.bench.rounds * self.settings.local_steps
        return self.bench.training(
            site, start, learning=self.learning, run_steps=run_steps, proximal=self.settings.proximal
        )

    @property
    def learning(self) -> LearningSettings:
        """The local step's settings; a method may insist on some of them."""
        return self.bench.learning

    def sampled(self, groups: Any, client: ClientContext) -> list[dict[str, Any]]:
        """A few readable episodes of the last step."""
        from fedagentgym.learning.trajectory import to_plain

        episodes = [trajectory for group in groups for trajectory in group]
        count = min(self.bench.bench.sampled_episodes, len(episodes))
        chosen = client.stream("samples").choice(len(episodes), count).tolist()
        return [to_plain(episodes[position], segments=False) for position in chosen]

    def _state_form(self) -> Form:
        """AdamW's moments, where they are kept."""
        return Form(self.moment_forms()) if self.learning.keep_optimizer else Form()

    def moment_forms(self) -> dict[str, ArrayForm]:
        moments = {
            f"weights/{OPTIMIZER}{moment}/{name}": ArrayForm("float32", array.shape, optional=True)
            for moment in ("exp_avg", "exp_avg_sq")
            for name, array in self.bench.initial_weights.items()
        }
        counts = ArrayForm("float64", (len(self.bench.initial_weights),), optional=True)
        return {**moments, f"weights/{OPTIMIZER}counts": counts}


def client_means(answers: Mapping[int, Message], norms: Mapping[int, float]) -> dict[str, float]:
    """The clients' metrics averaged (counts are added up), with the mean norm of their updates."""
    from fedagentgym.learning.local import mean_metrics

    means = mean_metrics([metrics_of(answer) for answer in answers.values()])
    return {**means, "update_norm": float(np.mean(list(norms.values()))) if norms else 0.0}
