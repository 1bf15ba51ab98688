"""One pipeline for all methods that average the clients' parameters.

    exchange(state, round)      call clients, yield their replies one by one         PubSwap swaps answers first
    accept(client, reply)       check a reply; separate its numbers from its parameters
    client_weights(replies)     the clients' weights, from the numbers alone         FedMOA has its own
    an accumulator              adds the updates in the order of the clients: a rule of `federation/aggregation.py`, or
                                the private mean of `federation/checks.py`

The parameters of a reply are stored in an `UpdateStore` as soon as they are accepted, so that a round holds a constant number
of models, whatever the number of clients. The clients' training between two averages is here too: `local_steps` policy steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.algorithms.base import CONTROL_BYTES, BaseAlgorithm
from fedagentgym.algorithms.card import METRICS, Card, Scale, Sent, Work
from fedagentgym.algorithms.reports import (
    MOST_COUNTED,
    evaluate_local_model,
    is_idle,
    read_report,
    summarise_local_models,
)
from fedagentgym.algorithms.runtime import Site, copy_arrays
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import NamedSettings
from fedagentgym.federation.aggregation import (
    HELD_MODELS,
    Accumulator,
    Aggregation,
    AggregationRule,
    LossRule,
    Mean,
    UpdateStore,
    WeightedMean,
)
from fedagentgym.federation.algorithm import OPTIMIZER, Round, RoundResult, ServerState, add_prefix, strip_prefix
from fedagentgym.federation.checks import (
    ASSUMED,
    PrivacySettings,
    PrivateMean,
    UpdateChecks,
    clip_factor,
    compute_epsilon,
)
from fedagentgym.federation.clients import Failure
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import REPORT_BYTES, Array, ArrayForm, Form, Message, Parameters, freeze
from fedagentgym.learning.local import LocalReport, LocalTraining, SiteState, mean_metrics

if TYPE_CHECKING:
    from fedagentgym.learning.penalties import Penalty


class LocalStepsSettings(NamedSettings):
    """Settings of every method whose clients train between two averages."""

    local_steps: int = Field(
        default=3, ge=1, description="policy steps of a client in a round (tau; the paper's local epochs)"
    )
    proximal: float = Field(default=0.0, ge=0.0, description="FedProx's mu: pulls a client back to the round's start")
    checks: UpdateChecks = Field(default=UpdateChecks(), description="which updates are refused or shortened")
    privacy: PrivacySettings | None = Field(
        default=None, description="clip every update and add noise to their mean, in place of checks and aggregation"
    )

    @property
    def rule(self) -> AggregationRule:
        """The rule that combines the clients' parameters."""
        return Mean()

    def weigh(self, examples: Sequence[float]) -> list[float]:
        """The clients' weights by their numbers of tasks: by default the rule decides, and most rules weigh all alike."""
        return self.rule.weigh(examples)

    @model_validator(mode="after")
    def _check_privacy(self) -> Self:
        if self.privacy is not None and self.checks != UpdateChecks():
            raise ValueError("privacy clips every update itself: it cannot be combined with checks")
        if self.privacy is not None and self.rule.name != "mean":
            raise ValueError(f"privacy is for the plain mean: it cannot be combined with {self.rule.name}")
        return self


class AveragingSettings(LocalStepsSettings):
    """The settings of a method whose server averages: local steps, proximal term, checks, privacy, aggregation rule."""

    aggregation: Aggregation = Mean()

    @property
    def rule(self) -> AggregationRule:
        """The aggregation rule."""
        return self.aggregation


class WeightedSettings(AveragingSettings):
    """The settings of a method that weighs clients by their numbers of tasks, unless the aggregation rule decides the weights."""

    aggregation: Aggregation = WeightedMean()

    def weigh(self, examples: Sequence[float]) -> list[float]:
        """By the numbers of tasks, or as a rule that defines weights says: for `mean`, `fedavgm` and `fedadam` they are equal."""
        decides = type(self.rule).weigh is not AggregationRule.weigh
        return (self.rule if decides else WeightedMean()).weigh(examples)


L = TypeVar("L", bound=LocalStepsSettings)
PARAMETERS = Sent("parameters", "the parameters after local training", "the server, their mean by all clients")
SUCCESS = "success"
LOSS_METRICS: Mapping[str, tuple[float, float]] = MappingProxyType({SUCCESS: (0.0, 1.0)})
"""The reported metric that a client's loss is taken from, with its least and greatest value."""


@dataclass(frozen=True)
class Exchange:
    """The replies of a round's last call as they arrive, and the numbers of what happened before it."""

    replies: Iterator[tuple[int, Message]]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AcceptedReply:
    """A client's reply without its parameters: everything that determines the client's weight."""

    client: int
    examples: int
    update_norm: float
    control: Mapping[str, Any]
    metrics: Mapping[str, float]
    episodes: Sequence[str]


class Averaging(BaseAlgorithm[L]):
    """Base class of methods whose clients train on their own tasks and whose server averages their parameters: FedAvg.

    A method overrides the step in which it differs. On the server a round is `exchange` (`make_broadcast`,
    `make_instructions`), `accept` for each reply, `find_refused`, `combine` (`client_weights`), `compute_round_metrics`. On a
    client it is `train_client`: `read_start`, `open_learner`, the local steps, `make_reply`. A round holds a constant number of
    models, whatever the number of clients.

    Attributes:
        deciding_metrics: Reported metrics that decide something, such as a client's weight, each with its least and greatest
            value; a reply without one, or with another value, is refused. All other metrics are shown, not checked.
    """

    deciding_metrics: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({})

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        """Return the one operation of clients, `train`."""
        sampled = REPORT_BYTES * (1 + self.runtime.spec.sampled_episodes)
        request, reply = (Form(self.runtime.make_weight_forms(), CONTROL_BYTES, report) for report in (0, sampled))
        return {"train": Operation(self.train_client, request, reply, self.make_state_form())}

    # ---- server ---------------------------------------------------------------------------------------------------

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Compute one round: call the participants, check their replies, combine them."""
        clients = this_round.clients
        exchange = self.exchange(state, this_round)
        held = len(this_round.participants) if self.settings.rule.needs_all else HELD_MODELS
        with UpdateStore(held) as updates:
            replies, malformed = [], []
            for client, message in exchange.replies:
                reply = self.accept(client, message, state)
                if isinstance(reply, Failure):
                    malformed.append(reply)
                else:
                    replies.append(reply)
                    updates.put(client, message.weights)
                del message
            clients.refuse(malformed)
            refused = self.find_refused(replies)
            clients.refuse(refused)
            left_out = {failure.client for failure in refused}
            used = [reply for reply in replies if reply.client not in left_out]
            taken = updates.take([reply.client for reply in used])
            after = self.combine(state, used, taken, this_round)
        own = self.compute_round_metrics(used, this_round)
        if this_round.secret is not None:
            return RoundResult(after, metrics=own)
        local_models = summarise_local_models({reply.client: reply.metrics for reply in replies})
        means = mean_metrics([dict(reply.metrics) for reply in replies])
        norm = float(np.mean([reply.update_norm for reply in replies])) if replies else 0.0
        metrics = {**means, "update_norm": norm, **local_models, **exchange.metrics, **own}
        return RoundResult(
            after,
            metrics=metrics,
            clients=self.compute_client_metrics(replies, used),
            episodes=[episode for reply in replies for episode in reply.episodes],
        )

    def exchange(self, state: ServerState, this_round: Round) -> Exchange:
        """Call the participants.

        Args:
            state: The global state.
            this_round: The round.

        Returns:
            The replies as they arrive, and metrics of what happened before.
        """
        control = {"step": (this_round.number - 1) * self.settings.local_steps, **self.make_instructions(state)}
        message = Message(weights=self.make_broadcast(state), control=control)
        asked = dict.fromkeys(this_round.participants, message)
        return Exchange(this_round.clients.iter_replies("train", asked, start=state.parameters))

    def make_broadcast(self, state: ServerState) -> Parameters:
        """Return the arrays that participants are sent.

        Args:
            state: The global state.

        Returns:
            The parameters; a method adds what it sends besides, under names with a prefix.
        """
        return state.parameters

    def make_instructions(self, state: ServerState) -> Mapping[str, Any]:
        """Return plain values that participants are sent with the parameters.

        Args:
            state: The global state.

        Returns:
            The values; none by default.
        """
        return {}

    def accept(self, client: int, message: Message, state: ServerState) -> AcceptedReply | Failure:
        """Read a reply.

        Args:
            client: The client.
            message: Its reply.
            state: The global state from which the round began.

        Returns:
            Everything but its parameters: examples, distance from the start, metrics, episodes; a `Failure` if it is malformed.
        """
        examples = message.control.get("examples")
        if type(examples) is not int or not 1 <= examples < MOST_COUNTED:
            return Failure(client, "refused", f"no number of examples: {str(examples)[:40]!r}")
        rows = self.runtime.env.max_turns  # of the loss at most
        asked = self.describe(self.settings, Scale(self.runtime.learning, rows_per_episode=rows)).round
        report = read_report(client, message, asked, self.runtime.spec.sampled_episodes)
        if isinstance(report, Failure):
            return report
        metrics = report.metrics
        needed = LOSS_METRICS if isinstance(self.settings.rule, LossRule) else {}
        for name, (low, high) in {**needed, **self.deciding_metrics}.items():
            if not low <= metrics.get(name, float("nan")) <= high:
                return Failure(
                    client, "refused", f"its {name!r} is {metrics.get(name)}, and must lie in {low:g} to {high:g}"
                )
        distance = message.measure_distance(state.parameters)
        return AcceptedReply(client, examples, distance, message.control, metrics, report.episodes)

    def find_refused(self, replies: Sequence[AcceptedReply]) -> list[Failure]:
        """Choose replies that are not used: by default, updates that are longer than the checks allow.

        Args:
            replies: The accepted replies.

        Returns:
            A failure for each client whose reply is refused.
        """
        if self.settings.privacy is not None:
            return []
        idle = {reply.client for reply in replies if is_idle(reply.metrics)}
        return self.settings.checks.find_refused({reply.client: reply.update_norm for reply in replies}, idle)

    def client_weights(self, replies: Sequence[AcceptedReply], this_round: Round) -> list[float]:
        """Return the weights of the clients in the average.

        Args:
            replies: The replies that are used.
            this_round: The round.

        Returns:
            The weight of each, as the settings and their aggregation rule weigh the clients' numbers of tasks.
        """
        return self.settings.weigh([float(reply.examples) for reply in replies])

    def combine(
        self, state: ServerState, used: Sequence[AcceptedReply], updates: Iterator[Parameters], this_round: Round
    ) -> ServerState:
        """Compute the next global state.

        Args:
            state: The global state.
            used: The replies that are used.
            updates: Their parameters, in the same order, each read once.
            this_round: The round.

        Returns:
            The next state; the same state if no reply is used.
        """
        privacy, rule = self.settings.privacy, self.settings.rule
        accumulator: Accumulator
        if privacy is not None:
            asked, noise = len(this_round.participants), this_round.draw_noise("privacy")
            accumulator = PrivateMean(state, asked, privacy, noise)
            weights = [clip_factor(privacy, reply.update_norm) for reply in used]
        elif not used:
            return state
        else:
            weights = self.client_weights(used, this_round)
            if not rule.uses_weights and len(set(weights)) > 1:
                raise self._refuse_weights()
            if isinstance(rule, LossRule):
                accumulator = rule.begin(state, [1.0 - reply.metrics[SUCCESS] for reply in used])
            else:
                accumulator = rule.begin(state)
        for reply, weight, update in zip(used, weights, updates, strict=True):
            if privacy is None:
                update = self.settings.checks.clip(state.parameters, update, reply.update_norm)
            accumulator.add(update, weight)
        return accumulator.finish()

    def compute_round_metrics(self, used: Sequence[AcceptedReply], this_round: Round) -> dict[str, float]:
        """Return the numbers of a round besides the clients' means.

        Args:
            used: The replies that were used.
            this_round: The round.

        Returns:
            Numbers by name: of a private run the budget spent so far, and the work that was asked for in place of what was done.
        """
        privacy = self.settings.privacy
        if privacy is None or this_round.secret is None:
            return {}
        asked, clients = len(this_round.participants), len(this_round.clients.ids)
        work = self.describe(self.settings, Scale(self.runtime.learning, clients, asked)).round or Work()
        spent = compute_epsilon(privacy, rounds=this_round.number, asked=asked, clients=clients)
        counts = {"episodes": float(work.episodes), "optimizer_steps": float(work.optimizer_steps)}
        return {**counts, "privacy/epsilon": spent, "privacy/delta": privacy.delta}

    def compute_client_metrics(
        self, replies: Sequence[AcceptedReply], used: Sequence[AcceptedReply]
    ) -> dict[int, dict[str, float]]:
        """Return the recorded numbers of each client.

        Args:
            replies: All accepted replies.
            used: Those that were used.

        Returns:
            Client -> its metrics, and the length of its update.
        """
        return {reply.client: {**reply.metrics, "update_norm": reply.update_norm} for reply in replies}

    # ---- client ---------------------------------------------------------------------------------------------------

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Train for `local_steps` steps on the client's own tasks; runs where the client is.

        Args:
            state: What the client kept.
            message: What the server sent.
            client: Number, round, streams and resources of the client.

        Returns:
            What the client keeps, and its reply.
        """
        local = self.open_learner(client.resources, self.read_start(state, message))
        report = local.run(self.settings.local_steps, seed=client.derive("train"))
        after = local.get_state()
        kept = Message(weights=self.keep_moments(after)) if self.learning.keep_optimizer else state
        return kept, self.make_reply(client, local, after, report)

    def keep_moments(self, after: SiteState) -> dict[str, Array]:
        """Return the moments of the optimizer for the client's state.

        Args:
            after: The state of the learner after its steps.

        Returns:
            The arrays, under names with a prefix; none unless `learning.keep_optimizer` is set.
        """
        return add_prefix(OPTIMIZER, after.optimizer)

    def make_reply(
        self,
        client: ClientContext[Site],
        local: LocalTraining,
        after: SiteState,
        report: LocalReport,
        *,
        control: Mapping[str, Any] = MappingProxyType({}),
        arrays: Parameters = MappingProxyType({}),
    ) -> Message:
        """Make a client's reply: its parameters, its number of examples, and what people read about it.

        Args:
            client: The client.
            local: Its learner.
            after: The state of the learner after its steps.
            report: The metrics and episodes of the steps.
            control: Further plain values.
            arrays: Further arrays, under names with a prefix.

        Returns:
            The message.
        """
        metrics = {**report.metrics, **evaluate_local_model(self.runtime, client.resources, local.agent, client.round)}
        episodes = self.sample_episodes(report.groups, client)
        return Message(
            weights=freeze({**after.weights, **arrays}),
            control={"examples": client.resources.examples, **control},
            report={"metrics": metrics, "episodes": episodes},
        )

    def read_start(self, state: Message, message: Message) -> SiteState:
        """Return the state from which a client's learner starts.

        Args:
            state: What the client kept.
            message: What the server sent.

        Returns:
            The parameters as sent, the step, and the moments if the client keeps them.
        """
        moments = copy_arrays(strip_prefix(OPTIMIZER, state.weights)) if self.learning.keep_optimizer else {}
        sent = {name: message.weights[name] for name in self.runtime.initial_weights}
        return SiteState(copy_arrays(sent), moments, step=int(message.control["step"]))

    def open_learner(self, site: Site, start: SiteState, penalties: Sequence[Penalty] = ()) -> LocalTraining:
        """Open a client's learner.

        Args:
            site: The client's tasks, environment and agent.
            start: The state to start from.
            penalties: Terms of the loss besides the proximal one.

        Returns:
            The learner.
        """
        from fedagentgym.learning.penalties import Proximal

        if self.settings.proximal > 0:
            penalties = (*penalties, Proximal(self.settings.proximal))
        run_steps = self.runtime.rounds * self.settings.local_steps
        return site.open_learner(start, run_steps=run_steps, penalties=penalties)

    def make_state_form(self, *, text: int = 0) -> Form:
        """Return the form of what a client keeps between rounds.

        Args:
            text: Bytes of plain values in it.

        Returns:
            The form, with the moments of the optimizer if the client keeps them.
        """
        return Form(self.make_moment_forms() if self.learning.keep_optimizer else {}, text)

    def make_moment_forms(self) -> dict[str, ArrayForm]:
        """Return the forms of AdamW's moments."""
        moments = {
            f"weights/{OPTIMIZER}{moment}/{name}": ArrayForm("float32", array.shape, optional=True)
            for moment in ("exp_avg", "exp_avg_sq")
            for name, array in self.runtime.initial_weights.items()
        }
        counts = ArrayForm("float64", (len(self.runtime.initial_weights),), optional=True)
        return {**moments, f"weights/{OPTIMIZER}counts": counts}

    # ---- what the method declares, and what it checks ---------------------------------------------------------------

    @classmethod
    def describe(cls, settings: L, scale: Scale) -> Card:
        """Return the card: every participant trains for `local_steps` and exchanges its parameters once.

        A method that overrides `client_weights` gives weights of its own; one whose weights are equal under some settings
        replaces `gives_weights`.
        """
        return replace(
            super().describe(settings, scale),
            round=replace(scale.count_local_work(settings.local_steps), models_down=1, models_up=1) * scale.asked,
            sent=(PARAMETERS, METRICS),
            kept_copies=("start of the round",) if settings.proximal > 0 else (),
            needs_counts=settings.privacy is None and settings.weigh([1.0, 3.0]) != settings.weigh([1.0, 1.0]),
            needs_metrics=bool(cls.deciding_metrics) or isinstance(settings.rule, LossRule),
            gives_weights=cls.client_weights is not Averaging.client_weights,
            trains_local_models=True,
            assumed=ASSUMED,
        )

    def check_start(self, asked: int) -> None:
        """Refuse an aggregation rule that would ignore the clients' weights, or that needs more clients.

        Args:
            asked: Number of clients that take part in a round.

        Raises:
            OptionError: If it would.
        """
        rule = self.settings.rule
        if rule.needs_all and asked < rule.least_updates:
            raise OptionError(
                f"algorithm.aggregation: {rule.name} needs the updates of {rule.least_updates} clients, and {asked} take part in"
                " a round"
            )
        if not rule.uses_weights and self._can_weigh_unequally():
            raise self._refuse_weights()

    def _can_weigh_unequally(self) -> bool:
        """Return whether clients are known to have unequal weights, or weights of the method's own."""
        if self.settings.privacy is not None or len(self.client_ids()) < 2:
            return False
        if self.card.gives_weights:
            return True
        if self.runtime.spec.partition.is_held:
            return False  # the numbers of tasks come with the first replies
        return len(set(self.settings.weigh([float(len(member)) for member in self.runtime.client_split]))) > 1

    def _refuse_weights(self) -> OptionError:
        own = self.card.gives_weights
        by = "its own weights" if own else "their numbers of tasks, which differ"
        return OptionError(
            f"algorithm.aggregation: {self.settings.rule.name} ignores weights, but {self.settings.name} weighs its clients by"
            f" {by}: choose a rule that uses weights, such as weighted, or a method that weighs all clients alike, such as"
            " fedagent"
        )
