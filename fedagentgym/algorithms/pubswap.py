"""PubSwap: federated averaging in which clients also learn from each other's answers to public tasks.

    server   theta (LoRA factors A and B, averaged separately) goes to all N clients
    client   tau local steps in periods of tau_swap; the first tau_swap - 1 of a period are private GRPO steps
    client   the last is a public step, in lockstep:
    server     draws b public tasks
    client     answers each of them G times, sends the answers
    server     grades them by replaying them in the unchanged environment, and swaps:
                 balanced: a client with c < G/2 right gets min(G/2 - c, donors) of its wrong answers, drawn at random,
                           replaced by right answers of other clients, drawn without replacement
                 random:   all clients get the same G of all N*G answers
    client     one GRPO step on its group
    server   theta = mean of A, mean of B

The last period of a round has no public step if it is incomplete; with tau_swap > tau the method is FedAvg of local GRPO, bit
for bit. `behaviour: local` scores a swapped answer under the receiving client's policy, so its ratio starts at 1; `donor` keeps
the log-probs under which it was sampled, which gives a true importance ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import AveragingSettings
from fedagentgym.algorithms.base import CONTROL_BYTES, OnPublicTasks
from fedagentgym.algorithms.card import Card, Scale, Sent, Work
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.runtime import Site, copy_arrays
from fedagentgym.base.errors import DataError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import Stream
from fedagentgym.federation.aggregation import LossRule
from fedagentgym.federation.algorithm import OPTIMIZER, Failure, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Form, Message
from fedagentgym.learning.rollouts import check_tokens, regrade
from fedagentgym.learning.state import COSTS, LocalReport, SiteState, get_trainable_policy, mean_metrics
from fedagentgym.learning.trajectory import Group, from_plain, to_plain

if TYPE_CHECKING:
    from fedagentgym.learning.learner import LocalTraining

STATE_PARTS = ("weights", OPTIMIZER, "anchor")


class PubSwapSettings(AveragingSettings):
    """`algorithm: {name: pubswap, local_steps: 10, swap_period: 2, ...}`."""

    name: Literal["pubswap"] = "pubswap"
    local_steps: int = Field(default=10, ge=1, description="policy steps of a client in a round (tau)")
    swap_period: int = Field(default=2, ge=1, description="one step in this many is public (tau_swap)")
    swap: Literal["balanced", "random", "none"] = Field(
        default="balanced",
        description="whose answers clients learn from; none: their own (the same public steps, as a control)",
    )
    behaviour: Literal["local", "donor"] = Field(
        default="local", description="log-probs of a swapped answer: recomputed by the receiver, or the donor's own"
    )
    public_tasks: int = Field(default=8, ge=1, description="public tasks of a public step (b)")

    @model_validator(mode="after")
    def _refuse_what_public_steps_break(self) -> Self:
        if self.privacy is not None and self.swap_period <= self.local_steps:
            raise ValueError(
                "answers to public tasks reach other clients without noise, so an epsilon for the updates would be false:"
                " privacy cannot be used with public steps"
            )
        if isinstance(self.rule, LossRule) and self.swap_period == 1:
            raise ValueError(
                f"{self.rule.name} needs the clients' success in private steps: set swap_period to 2 or more"
            )
        return self


@dataclass(frozen=True, slots=True)
class Donation:
    """An answer that replaces another: group and index of the replaced answer, the donor, and the index of the donor's answer."""

    group: int
    place: int
    donor: int
    source: int


class PubSwap(OnPublicTasks[PubSwapSettings], Averaging[PubSwapSettings]):
    """Server side and client operations of PubSwap; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = PubSwapSettings

    # ---- server ---------------------------------------------------------------------------------------------------

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """All periods with their public steps, the remaining private steps, and the mean."""
        settings = self.settings
        periods = settings.local_steps // settings.swap_period
        alive = list(this_round.participants)
        weights: Mapping[str, Any] = state.parameters
        step = (this_round.number - 1) * settings.local_steps
        counts: dict[str, float] = {}
        for period in range(periods):
            tasks = self.draw_public_tasks(this_round.stream("public", period))
            control = {"step": step, "steps": settings.swap_period - 1, "tasks": tasks, "period": period}
            ask = Message(weights=weights, control=control)
            groups = self.collect_answers(alive, ask, tasks, this_round)
            donations = self.choose_donations(groups, this_round.stream("swap", period))
            messages = {}
            for client in groups:  # the answers of others, as graded here, and their places
                sent = [
                    {
                        "group": to.group,
                        "place": to.place,
                        "trajectory": to_plain(groups[to.donor][to.group][to.source]),
                    }
                    for to in donations[client]
                ]
                messages[client] = Message(text={"donated": sent})
            alive = [client for client, _ in this_round.clients.iter_replies("learn", messages)]
            weights = {}
            for name, value in swap_metrics(groups, donations, alive).items():
                counts[name] = counts.get(name, 0.0) + value
        left = settings.local_steps - periods * settings.swap_period
        last = Message(weights=weights, control={"step": step, "steps": left})
        answers = this_round.clients.iter_replies("finish", dict.fromkeys(alive, last), start=state.parameters)
        with self.collect(answers, state, this_round) as replies:
            after = self.combine(state, replies.used, replies.read(), this_round)
        result = self.report(after, replies, this_round)
        counts["clients/left"] = float(len(this_round.participants) - len(replies.used))  # not in the mean
        return replace(result, metrics={**result.metrics, **counts})

    def collect_answers(
        self, clients: Sequence[int], ask: Message, tasks: Sequence[str], this_round: Round
    ) -> dict[int, tuple[Group, ...]]:
        """Every client's answers to the public tasks, graded by the server; malformed ones are refused."""
        model: Any = get_trainable_policy(self.runtime.agent).model
        vocabulary = len(model.get_input_embeddings().weight)
        groups: dict[int, tuple[Group, ...]] = {}
        malformed = []
        for client, reply in this_round.clients.iter_replies("generate", dict.fromkeys(clients, ask)):
            try:
                answers = read_groups(reply.text.get("groups"), tasks, self.learning.group_size)
                check_tokens(answers, vocabulary, self.runtime.agent.policy.context_length)
                groups[client] = regrade(self.public_env, answers)
            except DataError as error:
                malformed.append(Failure(client, "refused", f"malformed answers: {error}"))
        this_round.clients.refuse(malformed)
        return groups

    def choose_donations(self, groups: Mapping[int, tuple[Group, ...]], draw: Stream) -> dict[int, list[Donation]]:
        """Choose the answers of others that each client receives in this public step."""
        rule = SWAP_RULES[self.settings.swap]
        result: dict[int, list[Donation]] = {client: [] for client in groups}
        for index in range(self.settings.public_tasks):
            right = {client: [trajectory.success for trajectory in own[index]] for client, own in groups.items()}
            for client, taken in rule(right, draw).items():
                result[client] += [Donation(index, place, donor, source) for place, donor, source in taken]
        return result

    # ---- client ---------------------------------------------------------------------------------------------------

    def generate(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Private steps, then answers to the public tasks, kept for the step that follows."""
        local, metrics, _ = self._run_private_steps(state, message, client)
        tasks = [str(task) for task in message.control["tasks"]]
        seed = client.derive("public", message.control["period"])
        rollouts = local.collect_rollouts(seed, tasks=tasks, env=self.public_env)
        plain = [[to_plain(trajectory) for trajectory in group] for group in rollouts.groups]
        cost = {name: value for name, value in rollouts.compute_metrics().items() if name in COSTS}
        return self._keep_client(local, [*metrics, cost], plain), Message(text={"groups": plain})

    def learn(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """One step on the client's own answers and those that were swapped in."""
        site = client.resources
        local = self._resume_client(state, site)
        own = [[from_plain(plain) for plain in group] for group in state.text["groups"]]
        for donation in message.text["donated"]:
            stranger = from_plain(donation["trajectory"])
            if self.settings.behaviour == "local":
                ((stranger,),) = local.recompute_logprobs([(stranger,)])
            own[int(donation["group"])][int(donation["place"])] = stranger
        report = local.update([tuple(group) for group in own])
        metrics = [*state.control["metrics"], report.metrics]
        return self._keep_client(local, metrics, []), Message(control={"swapped": len(message.text["donated"])})

    def finish(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """The remaining steps, and the resulting theta."""
        local, metrics, groups = self._run_private_steps(state, message, client)
        after = local.get_state()
        kept = Message(sets={OPTIMIZER: after.optimizer}) if self.learning.keeps_state else Message()
        report = LocalReport(mean_metrics(metrics), (), groups)
        return kept, self.make_reply(client, local, after, report)

    def _run_private_steps(
        self, state: Message, message: Message, client: ClientContext[Site]
    ) -> tuple[LocalTraining, list[dict[str, float]], tuple[Group, ...]]:
        """Continue the site's training, or begin at the round's start, and take the requested private steps."""
        site = client.resources
        local = (
            self.open_learner(site, self.read_start(state, message, client))
            if message.weights
            else self._resume_client(state, site)
        )
        metrics = [] if message.weights else list(state.control.get("metrics", ()))
        groups: tuple[Group, ...] = ()
        if steps := int(message.control["steps"]):
            local.skipped = self.count_public_steps(local.step)
            report = local.run(steps, seed=client.derive("train"))
            metrics += report.steps
            groups = report.groups
        return local, metrics, groups

    def _resume_client(self, state: Message, site: Site) -> LocalTraining:
        """The client's training half-way through its round."""
        parts = {part: copy_arrays(state.sets.get(part, {})) for part in STATE_PARTS}
        return self.open_learner(site, SiteState(**parts, step=int(state.control["step"])))

    def _keep_client(self, local: LocalTraining, metrics: Sequence[Mapping[str, float]], groups: list[Any]) -> Message:
        site = local.get_state(optimizer=True, anchor=True)
        return Message(
            sets={part: getattr(site, part) for part in STATE_PARTS},
            control={"step": site.step, "metrics": [dict(one) for one in metrics]},
            text={"groups": groups},
        )

    # ---- what the method declares, and what it checks ---------------------------------------------------------------

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        """Return the operations of clients. Half-way through a round a client keeps weights, moments, and the round's start."""
        parameters, maybe = self.runtime.make_weight_forms(), self.runtime.make_weight_forms(optional=True)
        kept = {"weights": maybe, OPTIMIZER: self.make_moment_forms(), "anchor": maybe}
        answers = self.settings.public_tasks * self.learning.group_size * self.episode_bytes
        ids = 256 * self.settings.public_tasks
        state, plain, own = Form(sets=kept, text=CONTROL_BYTES + answers), Form(text=CONTROL_BYTES), Form(text=answers)
        reply = Form(parameters, text=CONTROL_BYTES, report=self.report_bytes)
        ask, finish = Form(maybe, text=CONTROL_BYTES + ids), Form(maybe, text=CONTROL_BYTES)
        return {
            "generate": Operation(self.generate, request=ask, reply=own, state=state),
            "learn": Operation(self.learn, request=own, reply=plain, state=state),
            "finish": Operation(self.finish, request=finish, reply=reply, state=state),
        }

    @classmethod
    def describe(cls, settings: PubSwapSettings, scale: Scale) -> Card:
        """Return the card: private steps, and in every period one step on the answers to public tasks; all answers are sent, at
        most half of them are returned swapped (all of them if swaps are random)."""
        card = super().describe(settings, scale)
        periods, group = settings.local_steps // settings.swap_period, scale.learning.group_size
        answers = settings.public_tasks * group
        swapped = settings.public_tasks * {"balanced": group // 2, "random": group, "none": 0}[settings.swap]
        public = Work(
            episodes=answers,
            read=swapped if settings.behaviour == "local" else 0,
            optimizer_steps=scale.count_updates(answers),
            answers_up=answers,
            answers_down=swapped,
        )
        private = scale.count_local_work(settings.local_steps - periods)
        sent = Sent("answers", "answers to the public tasks", "the server, some of them by other clients", ("swapped",))
        return replace(
            card,
            round=(private + public * periods + Work(models_down=1, models_up=1)) * scale.asked,
            roles=("public",) if periods else (),
            sent=(*card.sent, sent) if periods else card.sent,
        )


SwapPlan = dict[int, list[tuple[int, int, int]]]
"""For each client: (own index, donor, donor's index)."""


def draw_balanced_swap(right: Mapping[int, Sequence[bool]], draw: Stream) -> SwapPlan:
    """Bring every client up to half right, if others have right answers to give.

    An answer goes at most once into the same group, never back to its author, and no right answer is ever replaced.
    """
    taken: SwapPlan = {}
    for client, own in sorted(right.items()):
        donors = [
            (other, place)
            for other, theirs in sorted(right.items())
            if other != client
            for place in _find_places(theirs, True)
        ]
        wrong = _find_places(own, False)
        count = min(len(own) // 2 - sum(own), len(donors), len(wrong))
        if count <= 0:
            taken[client] = []
            continue
        places = sorted(wrong[int(index)] for index in draw.choice(len(wrong), count))
        sources = [donors[int(index)] for index in draw.choice(len(donors), count)]
        taken[client] = [(place, *source) for place, source in zip(places, sources, strict=True)]
    return taken


def draw_random_swap(right: Mapping[int, Sequence[bool]], draw: Stream) -> SwapPlan:
    """The same G answers for all clients, drawn from the answers of all."""
    everything = [(client, place) for client, own in sorted(right.items()) for place in range(len(own))]
    size = max((len(own) for own in right.values()), default=0)
    chosen = [everything[int(index)] for index in draw.choice(len(everything), size)] if size else []
    return {client: [(place, *source) for place, source in enumerate(chosen)] for client in sorted(right)}


def keep_own_answers(right: Mapping[int, Sequence[bool]], draw: Stream) -> SwapPlan:
    """No swaps: all clients learn from their own answers to the public tasks."""
    return {client: [] for client in sorted(right)}


SWAP_RULES = {"balanced": draw_balanced_swap, "random": draw_random_swap, "none": keep_own_answers}


def _find_places(flags: Sequence[bool], value: bool) -> list[int]:
    return [place for place, flag in enumerate(flags) if bool(flag) is value]


def read_groups(plain: Any, tasks: Sequence[str], size: int) -> tuple[Group, ...]:
    """The answers of a client, if valid: one group per task, of the right size, with tokens."""
    if not isinstance(plain, list) or len(plain) != len(tasks):
        raise DataError(f"expected the answers to {len(tasks)} tasks")
    groups = []
    for answers, task in zip(plain, tasks, strict=True):
        if not isinstance(answers, list) or len(answers) != size:
            raise DataError(f"expected {size} answers to {task}")
        group = tuple(from_plain(answer) for answer in answers)
        if any(trajectory.task != task for trajectory in group):
            raise DataError(f"an answer to {task} names another task")
        groups.append(group)
    return tuple(groups)


def swap_metrics(
    groups: Mapping[int, tuple[Group, ...]], donations: Mapping[int, Sequence[Donation]], alive: Sequence[int]
) -> dict[str, float]:
    """Counts of a public step: answers, right ones before the swap, swapped ones, swapped ones whose donor then failed in the
    step, and tasks without a right answer."""
    answers = [trajectory for own in groups.values() for group in own for trajectory in group]
    tasks = range(max((len(own) for own in groups.values()), default=0))
    hopeless = sum(not any(t.success for own in groups.values() for t in own[index]) for index in tasks)
    return {
        "public/answers": float(len(answers)),
        "public/right": float(sum(trajectory.success for trajectory in answers)),
        "public/swapped": float(sum(len(taken) for taken in donations.values())),
        "public/orphaned": float(sum(each.donor not in alive for client in alive for each in donations[client])),
        "public/all_wrong": float(hopeless),
    }
