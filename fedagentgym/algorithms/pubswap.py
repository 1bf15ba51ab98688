"""PubSwap: federated averaging that also lets clients learn from each other's answers to public tasks.

    server   theta (LoRA factors A and B, averaged separately) goes to all N clients
    client   tau local steps in periods of tau_swap; the first tau_swap - 1 of a period are private GRPO steps
    client   the last is a public step, in lockstep:
    server     draws b public tasks
    client     answers each of them G times, sends the answers
    server     grades them by replaying them in the unperturbed world, and swaps:
                 balanced: a client with c < G/2 right gets min(G/2 - c, donors) of its wrong answers, drawn at random,
                           replaced by right answers of other clients, drawn without replacement
                 random:   everybody gets the same G of all N*G answers
    client     one GRPO step on its group
    server   theta = mean of A, mean of B

The last period of a round has no public step if it is incomplete; with tau_swap > tau the method is FedAvg of local GRPO, bit
for bit. `behaviour: local` scores a swapped answer under the receiving client's policy, so its ratio starts at 1;
`donor` keeps the log-probs that it was sampled with, a true importance ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field

from fedagentgym.algorithms.fedagent import CONTROL_BYTES, FedAgent, FedAgentSettings, client_means
from fedagentgym.algorithms.support.replies import contributions, episodes_of, metrics_of
from fedagentgym.algorithms.support.runtime import Site
from fedagentgym.algorithms.support.state_arrays import OPTIMIZER, marked, unmarked, writable
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import Stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.federation.algorithm import Round, RoundResult
from fedagentgym.federation.clients import answered
from fedagentgym.federation.failures import Failure
from fedagentgym.federation.message import ArrayForm, Form, Message
from fedagentgym.federation.operation import ClientContext, Operation
from fedagentgym.learning.local import LocalTraining, SiteState, mean_metrics, trainable_policy
from fedagentgym.learning.regrade import check_tokens, regrade
from fedagentgym.learning.trajectory import Group, from_plain, to_plain

PARTS = ("weights", "optimizer", "anchor")
TOKEN_BYTES = 160
EPISODE_BYTES = 1 << 15


class PubSwapSettings(FedAgentSettings):
    """`algorithm: {name: pubswap, local_steps: 10, swap_period: 2, ...}`."""

    name: Literal["pubswap"] = "pubswap"  # type: ignore[assignment]
    local_steps: int = Field(default=10, ge=1, description="policy steps of a client in a round (tau)")
    swap_period: int = Field(default=2, ge=1, description="every so many steps one is public (tau_swap)")
    swap: Literal["balanced", "random"] = Field(default="balanced", description="who learns from whose answers")
    behaviour: Literal["local", "donor"] = Field(
        default="local", description="log-probs of a swapped answer: recomputed by the receiver, or the donor's own"
    )
    public_tasks: int = Field(default=8, ge=1, description="public tasks of a public step (b)")


@dataclass(frozen=True, slots=True)
class Donation:
    """An answer that takes the place of another one: group and place within it, and where it comes from."""

    group: int
    place: int
    donor: int
    source: int


class PubSwap(FedAgent):
    """Server side and client operations of PubSwap; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = PubSwapSettings

    @property
    def operations(self) -> Mapping[str, Operation]:
        if not self._operations:
            theta, maybe = self.bench.forms(), self.bench.forms(optional=True)
            answers = self._answer_bytes()
            state = Form(self._kept_arrays(), text=CONTROL_BYTES + answers)
            ids = CONTROL_BYTES + 256 * self.settings.public_tasks
            self._operations = {
                "generate": Operation(self.generate, Form(maybe, text=ids), Form(text=answers), state),
                "learn": Operation(self.learn, Form(text=answers), Form(text=CONTROL_BYTES), state),
                "finish": Operation(
                    self.finish, Form(maybe, text=CONTROL_BYTES), Form(theta, text=CONTROL_BYTES), state
                ),
            }
        return self._operations

    def _answer_bytes(self) -> int:
        """A bound on one client's answers of one public step."""
        episode: int = EPISODE_BYTES + TOKEN_BYTES * self.bench.agent.policy.context_length
        return int(self.settings.public_tasks * self.learning.group_size * episode)

    def _kept_arrays(self) -> dict[str, ArrayForm]:
        """What a client remembers half-way through a round: weights, moments, the round's start."""
        kept = self.moment_forms()
        for part in ("weights", "anchor"):
            kept |= self.bench.forms(f"weights/{part}/", optional=True)
        return kept

    # ---- server ---------------------------------------------------------------------------------------------------

    def round(self, state: Message, round: Round) -> RoundResult:
        """All periods of a round, then the average."""
        settings = self.settings
        periods = settings.local_steps // settings.swap_period
        alive = list(round.participants)
        theta: Mapping[str, Any] = state.weights
        step = (round.number - 1) * settings.local_steps
        counts: dict[str, float] = {}
        for period in range(periods):
            tasks = self.public_tasks(round.stream("public", period))
            ask = Message(
                weights=theta,
                control={"step": step, "steps": settings.swap_period - 1, "tasks": tasks, "period": period},
            )
            replies = answered(round.clients.call("generate", dict.fromkeys(alive, ask)))
            groups, malformed = self.graded(replies, tasks)
            round.clients.refuse(malformed)
            donations = self.swapped(groups, round.stream("swap", period))
            messages = {client: donation_message(donations[client], groups) for client in groups}
            alive = list(answered(round.clients.call("learn", messages)))
            theta = {}
            for name, value in swap_metrics(groups, donations, alive).items():
                counts[name] = counts.get(name, 0.0) + value
        left = settings.local_steps - periods * settings.swap_period
        last = Message(weights=theta, control={"step": step, "steps": left})
        answers = answered(round.clients.call("finish", dict.fromkeys(alive, last)))
        given, malformed = contributions(answers)
        round.clients.refuse(malformed)
        answers = {each.client: answers[each.client] for each in given}
        good, refused, norms = settings.checks.apply(state.weights, given)
        round.clients.refuse(refused)
        return RoundResult(
            self.aggregated(state, good),
            metrics=client_means(answers, norms)
            | counts
            | {"clients/left": float(len(round.participants) - len(good))},
            clients={k: {**metrics_of(answer), "update_norm": norms[k]} for k, answer in answers.items()},
            episodes=episodes_of(answers),
        )

    @cached_property
    def public(self) -> TextEnv:
        """The unperturbed world over the public tasks."""
        return self.bench.role("public")

    @cached_property
    def _vocabulary(self) -> int:
        """How many different tokens the agent's model can read."""
        model: Any = trainable_policy(self.bench.agent).model
        return len(model.get_input_embeddings().weight)

    def public_tasks(self, draw: Stream) -> list[str]:
        """b public tasks, distinct while there are enough of them."""
        pool, wanted = self.public.pool, self.settings.public_tasks
        if wanted > len(pool):
            raise OptionError(
                f"algorithm.public_tasks asks for {wanted} tasks at a time, partition.roles.public holds {len(pool)}"
            )
        return [pool.ids[int(position)] for position in draw.choice(len(pool), wanted)]

    def graded(
        self, replies: Mapping[int, Message], tasks: Sequence[str]
    ) -> tuple[dict[int, tuple[Group, ...]], list[Failure]]:
        """Every client's answers as the server judges them; what is not an answer to what was asked is refused."""
        groups: dict[int, tuple[Group, ...]] = {}
        malformed = []
        for client, reply in replies.items():
            try:
                answers = read_groups(reply.text.get("groups"), tasks, self.learning.group_size)
                check_tokens(answers, self._vocabulary, self.bench.agent.policy.context_length)
                groups[client] = regrade(self.public, answers)
            except DataError as error:
                malformed.append(Failure(client, "refused", f"malformed answers: {error}"))
        return groups, malformed

    def swapped(self, groups: Mapping[int, tuple[Group, ...]], draw: Stream) -> dict[int, list[Donation]]:
        """Who gets whose answers in this public step."""
        rule = balanced_swap if self.settings.swap == "balanced" else random_swap
        result: dict[int, list[Donation]] = {client: [] for client in groups}
        for index in range(self.settings.public_tasks):
            right = {client: [trajectory.success for trajectory in own[index]] for client, own in groups.items()}
            for client, taken in rule(right, draw).items():
                result[client] += [Donation(index, place, donor, source) for place, donor, source in taken]
        return result

    # ---- client ---------------------------------------------------------------------------------------------------

    def generate(self, state: Message, message: Message, client: ClientContext) -> tuple[Message, Message]:
        """Private steps, then answers to the public tasks, kept for the step that follows."""
        local, metrics, _ = self._private_steps(state, message, client)
        tasks = [str(task) for task in message.control["tasks"]]
        site: Site = client.resources
        visit = LocalTraining(site.agent, self.public, self.learning)
        visit.start(local.state(optimizer=False, anchor=True))
        rollouts = visit.play(client.derive("public", message.control["period"]), tasks=tasks)
        plain = [[to_plain(trajectory) for trajectory in group] for group in rollouts.groups]
        cost = {name: value for name, value in rollouts.metrics().items() if name in ("episodes", "env_steps")}
        return self._kept(local, [*metrics, cost], plain), Message(text={"groups": plain})

    def learn(self, state: Message, message: Message, client: ClientContext) -> tuple[Message, Message]:
        """One step on the own answers and those that were swapped in."""
        site: Site = client.resources
        local = self._resumed(state, site)
        own = [[from_plain(plain) for plain in group] for group in state.text["groups"]]
        for donation in message.text["donated"]:
            stranger = from_plain(donation["trajectory"])
            if self.settings.behaviour == "local":
                ((stranger,),) = local.rescored([(stranger,)])
            own[int(donation["group"])][int(donation["place"])] = stranger
        report = local.update([tuple(group) for group in own])
        metrics = [*state.control["metrics"], report.metrics]
        return self._kept(local, metrics, []), Message(control={"swapped": len(message.text["donated"])})

    def finish(self, state: Message, message: Message, client: ClientContext) -> tuple[Message, Message]:
        """The steps that are left; what the round has made of theta."""
        local, metrics, groups = self._private_steps(state, message, client)
        after = local.state(optimizer=True)
        answer = Message(
            weights=after.weights,
            control={"examples": client.resources.examples},
            report={"metrics": mean_metrics(metrics), "episodes": self.sampled(groups, client)},
        )
        kept = Message(weights=marked(OPTIMIZER, after.optimizer))
        return (kept if self.learning.keep_optimizer else Message()), answer

    def _private_steps(
        self, state: Message, message: Message, client: ClientContext
    ) -> tuple[LocalTraining, list[dict[str, float]], tuple[Group, ...]]:
        """Take up the site where it stands, or at the round's start, and make the private steps that are asked for."""
        site: Site = client.resources
        local = self.started(site, state, message) if message.weights else self._resumed(state, site)
        metrics = [] if message.weights else list(state.control.get("metrics", ()))
        groups: tuple[Group, ...] = ()
        if steps := int(message.control["steps"]):
            report = local.run(steps, seed=client.derive("train"))
            metrics += report.steps
            groups = report.groups
        return local, metrics, groups

    def _resumed(self, state: Message, site: Site) -> LocalTraining:
        """The client's training half-way through its round."""
        parts = {part: writable(unmarked(f"{part}/", state.weights)) for part in PARTS}
        return self.taken_up(site, SiteState(**parts, step=int(state.control["step"])))

    def _kept(self, local: LocalTraining, metrics: Sequence[Mapping[str, float]], groups: list[Any]) -> Message:
        site = local.state(optimizer=True, anchor=True)
        arrays = {name: array for part in PARTS for name, array in marked(f"{part}/", getattr(site, part)).items()}
        return Message(
            weights=arrays,
            control={"step": site.step, "metrics": [dict(one) for one in metrics]},
            text={"groups": groups},
        )


Taken = dict[int, list[tuple[int, int, int]]]
"""For each client: (own place, donor, donor's place)."""


def balanced_swap(right: Mapping[int, Sequence[bool]], draw: Stream) -> Taken:
    """Bring every client up to half right, if others have right answers to give.

    An answer goes at most once into the same group, never back to its author, and no right answer is ever replaced.
    """
    taken: Taken = {}
    for client, own in sorted(right.items()):
        donors = [
            (other, place)
            for other, theirs in sorted(right.items())
            if other != client
            for place in _where(theirs, True)
        ]
        wrong = _where(own, False)
        count = min(len(own) // 2 - sum(own), len(donors), len(wrong))
        if count <= 0:
            taken[client] = []
            continue
        places = sorted(wrong[int(index)] for index in draw.choice(len(wrong), count))
        sources = [donors[int(index)] for index in draw.choice(len(donors), count)]
        taken[client] = [(place, *source) for place, source in zip(places, sources, strict=True)]
    return taken


def random_swap(right: Mapping[int, Sequence[bool]], draw: Stream) -> Taken:
    """The same G answers, drawn from all of them, for everybody."""
    everything = [(client, place) for client, own in sorted(right.items()) for place in range(len(own))]
    size = max((len(own) for own in right.values()), default=0)
    chosen = [everything[int(index)] for index in draw.choice(len(everything), size)] if size else []
    return {client: [(place, *source) for place, source in enumerate(chosen)] for client in sorted(right)}


def _where(flags: Sequence[bool], value: bool) -> list[int]:
    return [place for place, flag in enumerate(flags) if bool(flag) is value]


def donation_message(donations: Sequence[Donation], groups: Mapping[int, tuple[Group, ...]]) -> Message:
    """What one client is sent after the swap: strangers' answers, as the server graded them, and where they go."""
    sent = [
        {"group": each.group, "place": each.place, "trajectory": to_plain(groups[each.donor][each.group][each.source])}
        for each in donations
    ]
    return Message(text={"donated": sent})


def read_groups(plain: Any, tasks: Sequence[str], size: int) -> tuple[Group, ...]:
    """The answers of a client, if they are what was asked for: one group per task, of the right size, with tokens."""
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
    """Counts of a public step: right answers before the swap, swapped ones, those of donors that failed in the step
    itself, and tasks that nobody could help with."""
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
