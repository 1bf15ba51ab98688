"""The steps of methods whose server averages the clients' parameters; `fedagent.py` is the plainest such method.

    server   train_participants   send theta to every k in S, and collect
             collect              check every reply, and store its theta_k until all are there
             combine              theta = sum of w_k theta_k with w_k by `client_weights`, or another aggregation rule
             report               the record of the round
    client   read_start           theta, and the moments of the optimizer if the client keeps them
             open_learner         a learner of the client's own tasks
             make_reply           theta_k, the number of tasks, metrics and sampled episodes

The parameters of an accepted reply go into an `UpdateStore`, which keeps a few models in memory and the others on disk. So a
round needs the same memory for any number of clients, unless the aggregation rule needs all updates at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from fedagentgym.algorithms.base import BaseAlgorithm
from fedagentgym.algorithms.card import Scale, Work
from fedagentgym.algorithms.reports import (
    MAX_COUNTED,
    evaluate_local_model,
    is_idle,
    read_report,
    summarise_local_models,
)
from fedagentgym.algorithms.runtime import Site, copy_arrays, make_moment_forms
from fedagentgym.base.errors import OptionError, show_value
from fedagentgym.base.settings import NamedSettings
from fedagentgym.federation.aggregation import (
    HELD_BYTES,
    HELD_MODELS,
    Accumulator,
    Aggregation,
    AggregationRule,
    LossRule,
    Mean,
    UpdateStore,
    WeightedMean,
    are_weights,
    begin_aggregation,
    compute_weights,
    step_server,
)
from fedagentgym.federation.algorithm import OPTIMIZER, Failure, Round, RoundResult, ServerState
from fedagentgym.federation.checks import (
    PrivacySettings,
    PrivateMean,
    UpdateChecks,
    clip_factor,
    compute_epsilon,
)
from fedagentgym.federation.exchange import ClientContext
from fedagentgym.federation.message import ArrayForm, Form, Message, Parameters, freeze
from fedagentgym.learning.state import LocalReport, SiteState, mean_metrics

if TYPE_CHECKING:
    from fedagentgym.learning.learner import LocalTraining
    from fedagentgym.learning.penalties import Penalty


class LocalStepsSettings(NamedSettings):
    """Settings of every method whose clients train between two averages."""

    local_steps: int = Field(
        default=3, ge=1, description="policy steps of a client in a round (tau; the paper's local epochs)"
    )
    proximal: float = Field(default=0.0, ge=0.0, description="FedProx's mu: pulls a client back to the round's start")
    server_step: float = Field(
        default=1.0,
        gt=0.0,
        description="how far the server moves from its parameters towards the combined ones; 1: all the way",
    )
    server_momentum: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="share of its previous move that the server repeats; 1: all moves add up",
    )
    checks: UpdateChecks = Field(default=UpdateChecks(), description="which updates are refused or shortened")
    privacy: PrivacySettings | None = Field(
        default=None, description="clip every update and add noise to the mean, in place of checks and aggregation"
    )

    @property
    def rule(self) -> AggregationRule:
        """The rule that combines the clients' parameters."""
        return Mean()

    @property
    def takes_server_step(self) -> bool:
        """True if the server does more than adopt the combined parameters."""
        return self.server_step != 1.0 or self.server_momentum > 0.0

    def weigh(self, examples: Sequence[float]) -> list[float]:
        """The clients' weights, given their numbers of tasks: the rule decides by default, and most rules weigh all equally."""
        return compute_weights(self.rule, examples)

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
        """The weights that the rule defines, if it does (`mean` and `fedadam`: equal ones); else the numbers of tasks."""
        decides = type(self.rule).weigh is not AggregationRule.weigh
        return compute_weights(self.rule if decides else WeightedMean(), examples)


L = TypeVar("L", bound=LocalStepsSettings)
SUCCESS = "success"
LOSS_METRICS: Mapping[str, tuple[float, float]] = MappingProxyType({SUCCESS: (0.0, 1.0)})
"""The reported metric that a client's loss is taken from, with its least and greatest value."""


@dataclass(frozen=True)
class AcceptedReply:
    """A client's reply without its parameters: everything that determines the client's weight."""

    client: int
    examples: int
    update_norm: float
    control: Mapping[str, Any]
    metrics: Mapping[str, float]
    episodes: Sequence[str]


@dataclass(frozen=True)
class Replies:
    """The replies of a round.

    Attributes:
        accepted: The well-formed replies.
        used: The accepted replies that the checks on the length of updates do not refuse.
        stores: The stored arrays of the replies: parameters under None, sets of arrays by name. Read them with `read`.
    """

    accepted: Sequence[AcceptedReply]
    used: Sequence[AcceptedReply]
    stores: Mapping[str | None, UpdateStore]

    def read(self, name: str | None = None) -> Iterator[Parameters]:
        """The parameters of the used replies in their order, or the set of arrays `name` of each reply. They can be read once,
        while the context is open."""
        return self.stores[name].take([reply.client for reply in self.used])


class AveragingSteps(BaseAlgorithm[L]):
    """The steps of a round in which clients train on their own tasks and the server averages their parameters.

    Attributes:
        deciding_metrics: Reported metrics that decide something, such as a client's weight, each with its least and greatest
            value; a reply without one, or with another value, is refused. All other metrics are shown, not checked.
        sent_sets: Names of sets of arrays that are sent with the parameters, in both directions, with the parameters' shapes.
        kept_sets: Names of sets of arrays that clients keep from round to round, with the parameters' shapes.
    """

    deciding_metrics: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({})
    sent_sets: ClassVar[tuple[str, ...]] = ()
    kept_sets: ClassVar[tuple[str, ...]] = ()

    # ---- server ---------------------------------------------------------------------------------------------------

    @contextmanager
    def train_participants(
        self,
        state: ServerState,
        this_round: Round,
        *,
        sets: Mapping[str, Parameters] = MappingProxyType({}),
        control: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[Replies]:
        """Let every participant train, starting from the global parameters.

        Args:
            state: The global state.
            this_round: The round.
            sets: Further arrays to send, by the names in `sent_sets`.
            control: Further plain values to send.

        Yields:
            The replies; their arrays can be read until the context is left.
        """
        step = (this_round.number - 1) * self.settings.local_steps
        message = Message(weights=self.choose_sent(state.parameters), sets=sets, control={"step": step, **control})
        asked = {client: self.address(message, client) for client in this_round.participants}
        answers = this_round.clients.iter_replies("train", asked, start=state.parameters)
        read = ((client, self.read_reply(answer, state)) for client, answer in answers)
        with self.collect(read, state, this_round) as replies:
            yield replies

    def choose_sent(self, parameters: Parameters) -> Parameters:
        """Return the parameters that the server sends.

        Args:
            parameters: The global parameters.

        Returns:
            By default all.
        """
        return parameters

    def address(self, message: Message, client: int) -> Message:
        """Return the message that is sent to one client.

        Args:
            message: The message of the round.
            client: Number of the client.

        Returns:
            By default the message, the same for all.
        """
        return message

    def read_reply(self, answer: Message, state: ServerState) -> Message:
        """Return a client's reply with the arrays that the server combines.

        Args:
            answer: The reply.
            state: The global state from which the round began.

        Returns:
            By default the reply.
        """
        return answer

    def start_parameters(self, parameters: Parameters, client: int) -> Parameters:
        """Return the parameters that a client begins a round with. Its update is the difference from them.

        Args:
            parameters: The global parameters.
            client: Number of the client.

        Returns:
            By default the global parameters.
        """
        return parameters

    @contextmanager
    def collect(
        self, answers: Iterator[tuple[int, Message]], state: ServerState, this_round: Round
    ) -> Iterator[Replies]:
        """Check replies one by one as they arrive, and store their arrays. Malformed replies are refused; after the last reply,
        updates that are longer than the checks allow are refused too.

        Args:
            answers: The clients with their replies.
            state: The global state from which the round began.
            this_round: The round.

        Yields:
            The replies; their arrays can be read until the context is left.
        """
        held = len(this_round.participants) if self.settings.rule.needs_all else HELD_MODELS
        names = (None, *self.sent_sets)
        with ExitStack() as open_stores:
            stores = {name: open_stores.enter_context(UpdateStore(held, HELD_BYTES // len(names))) for name in names}
            accepted: list[AcceptedReply] = []
            malformed: list[Failure] = []
            for client, message in answers:
                reply = self.accept(client, message, state)
                if isinstance(reply, Failure):
                    malformed.append(reply)
                else:
                    accepted.append(reply)
                    for name, store in stores.items():
                        store.put(client, message.weights if name is None else message.sets[name])
                del message
            this_round.clients.refuse(malformed)
            refused: list[Failure] = []
            if self.settings.privacy is None:
                idle = {reply.client for reply in accepted if is_idle(reply.metrics)}
                norms = {reply.client: reply.update_norm for reply in accepted}
                refused = self.settings.checks.find_refused(norms, idle)
            this_round.clients.refuse(refused)
            left_out = {failure.client for failure in refused}
            yield Replies(accepted, [reply for reply in accepted if reply.client not in left_out], stores)

    def accept(self, client: int, message: Message, state: ServerState) -> AcceptedReply | Failure:
        """Read and check a reply.

        Args:
            client: The client.
            message: Its reply.
            state: The global state from which the round began.

        Returns:
            The reply without its parameters, with the distance of its update; a `Failure` if it is malformed.
        """
        card = self.describe(self.settings, Scale(self.runtime.learning, rows_per_episode=self.runtime.env.max_turns))
        examples = message.control.get("examples", None if card.needs_counts else 1)
        if type(examples) is not int or not 1 <= examples < MAX_COUNTED:
            return Failure(client, "refused", f"no number of examples: {str(examples)[:40]!r}")
        report = read_report(client, message, card.round, self.runtime.spec.sampled_episodes)
        if isinstance(report, Failure):
            return report
        metrics = report.metrics
        needed = LOSS_METRICS if isinstance(self.settings.rule, LossRule) else {}
        for name, (low, high) in {**needed, **self.deciding_metrics}.items():
            if name not in metrics:
                return Failure(client, "refused", f"it reports no {name!r} that is a number")
            if not low <= metrics[name] <= high:
                return Failure(
                    client, "refused", f"its {name!r} is {metrics[name]}, and must lie in {low:g} to {high:g}"
                )
        distance = message.measure_distance(self.start_parameters(state.parameters, client))
        return AcceptedReply(client, examples, distance, message.control, metrics, report.episodes)

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
        """Compute the next global state by the aggregation rule, then by `step_server` if the settings have a server's step.

        Args:
            state: The global state.
            used: The replies that are used.
            updates: Their parameters, in the same order, each read once.
            this_round: The round.

        Returns:
            The next state; the same state if no reply is used, except under `privacy`, which adds noise even then.
        """
        settings, theta = self.settings, state.parameters
        begun = state
        if settings.takes_server_step:  # it needs the combined parameters before rounding
            begun = replace(state, parameters={name: value.astype(np.float64) for name, value in theta.items()})
        accumulator: Accumulator
        if settings.privacy is not None:
            asked, noise = len(this_round.participants), this_round.draw_noise("privacy")
            accumulator = PrivateMean(begun, asked, settings.privacy, noise)
            weights = [clip_factor(settings.privacy, reply.update_norm) for reply in used]
        elif not used:
            return state
        else:
            weights = self.client_weights(used, this_round)
            if not are_weights(weights, len(used)):
                raise OptionError(
                    f"client_weights of {settings.name} is to return a number of at least 0 for each of {len(used)} replies, got"
                    f" {show_value(weights)}"
                )
            if not settings.rule.uses_weights and len(set(weights)) > 1:
                raise self._refuse_weights()
            losses = [1.0 - reply.metrics[SUCCESS] for reply in used] if isinstance(settings.rule, LossRule) else []
            accumulator = begin_aggregation(settings.rule, begun, losses)
        for reply, weight, update in zip(used, weights, updates, strict=True):
            if settings.privacy is None:
                update = settings.checks.clip(self.start_parameters(theta, reply.client), update, reply.update_norm)
            accumulator.add(update, weight)
        combined = accumulator.finish()
        if not isinstance(combined, ServerState):
            raise OptionError(
                f"the aggregation rule {settings.rule.name} is to give a ServerState, got {show_value(combined)}"
            )
        combined.check_shapes(theta, f"the aggregation rule {settings.rule.name}", wide=True)
        if not settings.takes_server_step:
            return combined
        return step_server(state, combined, settings.server_step, settings.server_momentum)

    def report(self, after: ServerState, replies: Replies, this_round: Round) -> RoundResult:
        """Make the record of a round: the means over clients, and the numbers of each client. In a private run it has nothing
        about clients, only the work that was asked for and the budget spent so far.

        Args:
            after: The next global state.
            replies: The replies.
            this_round: The round.

        Returns:
            The result.
        """
        privacy = self.settings.privacy
        if privacy is not None and this_round.secret is not None:
            asked, clients = len(this_round.participants), len(this_round.clients.ids)
            work = self.describe(self.settings, Scale(self.runtime.learning, clients, asked)).round or Work()
            counts = {"episodes": float(work.episodes), "optimizer_steps": float(work.optimizer_steps)}
            spent = compute_epsilon(privacy, rounds=this_round.number, asked=asked, clients=clients)
            return RoundResult(after, {**counts, "privacy/epsilon": spent, "privacy/delta": privacy.delta})
        accepted = replies.accepted
        norm = float(np.mean([reply.update_norm for reply in accepted])) if accepted else 0.0
        return RoundResult(
            after,
            metrics={
                **mean_metrics([dict(reply.metrics) for reply in accepted]),
                "update_norm": norm,
                **summarise_local_models({reply.client: reply.metrics for reply in accepted}),
            },
            clients={reply.client: {**reply.metrics, "update_norm": reply.update_norm} for reply in accepted},
            episodes=[episode for reply in accepted for episode in reply.episodes],
        )

    # ---- client ---------------------------------------------------------------------------------------------------

    def read_start(self, state: Message, message: Message, client: ClientContext[Site]) -> SiteState:
        """Return the state from which a client's learner starts.

        Args:
            state: The state that the client kept.
            message: The server's message.
            client: Number, round, streams and resources of the client.

        Returns:
            The parameters as sent, the step, and the moments and the value head that the client keeps.
        """
        moments = copy_arrays(state.sets.get(OPTIMIZER, {})) if self.learning.keeps_state else {}
        sent = {name: message.weights[name] for name in self.runtime.initial_weights}
        return SiteState(copy_arrays(sent), moments, step=int(message.control["step"]))

    def open_learner(
        self, site: Site, start: SiteState, penalties: Sequence[Penalty] = (), *, own_steps: int | None = None
    ) -> LocalTraining:
        """Open a client's learner.

        Args:
            site: The client's tasks, environment and agent.
            start: The state to start from.
            penalties: Terms of the loss besides the proximal one.
            own_steps: The number of its steps if the schedule of the learning rate is for them alone, and not for the run.

        Returns:
            The learner.
        """
        from fedagentgym.learning.penalties import Proximal

        if self.settings.proximal > 0:
            penalties = (*penalties, Proximal(self.settings.proximal))
        if own_steps is not None:
            return site.open_learner(start, run_steps=own_steps, first_step=start.step, penalties=penalties)
        run_steps = self.runtime.rounds * self.settings.local_steps
        return site.open_learner(start, run_steps=run_steps, penalties=penalties)

    def make_reply(
        self,
        client: ClientContext[Site],
        local: LocalTraining,
        after: SiteState,
        report: LocalReport,
        *,
        control: Mapping[str, Any] = MappingProxyType({}),
        sets: Mapping[str, Parameters] = MappingProxyType({}),
    ) -> Message:
        """Make a client's reply: its parameters, its number of examples, its metrics and sampled episodes.

        Args:
            client: The client.
            local: Its learner.
            after: The state of the learner after its steps.
            report: The metrics and episodes of the steps.
            control: Further plain values.
            sets: Further arrays by the name of their set.

        Returns:
            The message.
        """
        metrics = {**report.metrics, **evaluate_local_model(self.runtime, client.resources, local.agent, client.round)}
        episodes = self.sample_episodes(report.groups, client)
        return Message(
            weights=freeze(after.weights),
            sets={name: freeze(arrays) for name, arrays in sets.items()},
            control={**client.resources.reported_counts, **control},
            report={"metrics": metrics, "episodes": episodes},
        )

    # ---- forms and checks ---------------------------------------------------------------

    def make_state_form(self, *, text: int = 0) -> Form:
        """Return the form of the state that a client keeps between rounds.

        Args:
            text: Maximum size of its plain values, in bytes.

        Returns:
            The form: the kept sets, and the moments and the value head that the client keeps.
        """
        kept = dict.fromkeys(self.kept_sets, self.runtime.make_weight_forms(optional=True))
        if self.learning.keeps_state:
            kept[OPTIMIZER] = self.make_moment_forms()
        return Form(sets=kept, text=text)

    def make_moment_forms(self) -> dict[str, ArrayForm]:
        """Return the forms of AdamW's moments, and of a value head that is the client's own."""
        own = self.runtime.own_head if self.learning.keeps_head else {}
        heads = {name: ArrayForm("float32", array.shape, optional=True) for name, array in own.items()}
        return {**make_moment_forms({**self.runtime.initial_weights, **own}), **heads}

    def check_start(self, asked: int) -> None:
        """Refuse a rule or privacy that would ignore the clients' weights, and a rule that needs more clients.

        Args:
            asked: Number of clients that take part in a round.

        Raises:
            OptionError: If weights would be ignored, or too few clients take part.
        """
        super().check_start(asked)
        rule = self.settings.rule
        if rule.needs_all and asked < rule.least_updates:
            raise OptionError(
                f"algorithm.aggregation: {rule.name} needs the updates of {rule.least_updates} clients, and {asked} take part in"
                " a round"
            )
        if len(self.client_ids()) < 2:
            return
        if self.settings.privacy is not None:
            if self.settings.privacy.delta >= 1 / (clients := len(self.client_ids())):
                raise OptionError(
                    f"algorithm.privacy.delta must be below 1 / clients (1 / {clients}), got {self.settings.privacy.delta:g}:"
                    " a larger one promises nothing"
                )
            if self.card.gives_weights or len(set(self.settings.weigh([1.0, 3.0]))) > 1:
                raise OptionError(
                    f"algorithm.privacy weighs all clients alike, but {self.settings.name} weighs its clients by"
                    f" {self._describe_weights()}: leave out privacy, or choose a method that weighs all alike, such as fedagent"
                )
            return
        if rule.uses_weights:
            return
        if self.card.gives_weights:
            raise self._refuse_weights()
        # clients that hold their own tasks report the number only with their first replies
        known = self.runtime.sites.list_openable(self.client_ids())
        sizes = [float(len(self.runtime.client_split[client])) for client in known]
        if sizes and len(set(self.settings.weigh(sizes))) > 1:
            raise self._refuse_weights()

    def _refuse_weights(self) -> OptionError:
        return OptionError(
            f"algorithm.aggregation: {self.settings.rule.name} ignores weights, but {self.settings.name} weighs its clients by"
            f" {self._describe_weights()}: choose a rule that uses weights, such as weighted, or a method that weighs all clients"
            " alike, such as fedagent"
        )

    def _describe_weights(self) -> str:
        return "its own weights" if self.card.gives_weights else "their numbers of tasks, which differ"
