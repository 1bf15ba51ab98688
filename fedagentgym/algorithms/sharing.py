"""Rollouts shared without averaging: every client keeps a policy of its own and learns from answers of others to public tasks.

    server   for each of local_steps: private steps, and every `swap_period`-th is public:
    server     send every client the ids of its public tasks
    client     answer each of them G times; send the answers as text
    server     grade them by replaying them in the unchanged environment, and choose which ones others learn from
    client     put these into its own prompts and tokens; one step on its own answers and theirs

Nothing is averaged and no parameters are sent. Answers are sent as text, not as tokens, so clients may have different agents
(`agents`). An answer of another client that does not fit the receiver's context is left out. Every client keeps its policy and
its moments from round to round; the policy that is evaluated in the unchanged environment and exported is the run's agent as it
was loaded.

`hacpo.py` and `swarm.py` define which answers are sent, and how a client learns from them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from fedagentgym.agents.settings import SaidAgent
from fedagentgym.algorithms.base import CONTROL_BYTES, EPISODE_BYTES, TOKEN_BYTES, OnPublicTasks
from fedagentgym.algorithms.card import METRICS, Card, Scale, SecondModel, Sent, Work
from fedagentgym.algorithms.experts import make_candidate, reread
from fedagentgym.algorithms.reports import Report, evaluate_local_model, read_report, summarise_local_models
from fedagentgym.algorithms.runtime import ResidentModel, Site, copy_arrays, make_moment_forms
from fedagentgym.base.errors import DataError
from fedagentgym.base.settings import NamedSettings
from fedagentgym.base.streams import Stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.federation.algorithm import Failure, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Array, ArrayForm, Form, Message
from fedagentgym.learning.rollouts import regrade_trajectory
from fedagentgym.learning.state import COSTS, SiteState, mean_metrics
from fedagentgym.learning.trajectory import Group, Trajectory, Turn, from_plain, map_tokens_to_turns, to_plain

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.learning.learner import LocalTraining


MAX_SURPRISAL = float(np.finfo(np.float32).max)
"""The largest size of a log-prob: receivers compute in float32, where a larger one would be infinite."""


class SharingSettings(NamedSettings):
    """The settings of methods that share rollouts."""

    local_steps: int = Field(default=3, ge=1, description="policy steps of a client in a round")
    swap_period: int = Field(default=1, ge=1, description="one step in this many is public")
    public_tasks: int = Field(default=4, ge=1, description="public tasks of a client in a public step")
    agents: tuple[SaidAgent, ...] | None = Field(
        default=None,
        min_length=1,
        description="agents of the clients, repeated if there are more clients; null: the run's agent for all",
    )


class Answer(NamedTuple):
    """An answer at the server: the candidate as text, the mean log-prob of each turn under its author, and the graded episode."""

    candidate: Mapping[str, Any]
    logprobs: tuple[float, ...]
    graded: Trajectory


class Chosen(NamedTuple):
    """An answer that a client learns from: the number of the task's group, and its author."""

    group: int
    author: int
    answer: Answer


Answers = Mapping[int, Sequence[Sequence[Answer]]]
"""By client, the answers to each of its tasks."""
S = TypeVar("S", bound=SharingSettings)


class Sharing(OnPublicTasks[S]):
    """Base class of methods that share rollouts: write `draw_tasks`, `choose` and `learn_from`."""

    # ---- what methods write -----------------------------------------------------------------------------------------

    @abstractmethod
    def draw_tasks(self, clients: Sequence[int], draw: Stream) -> dict[int, list[str]]:
        """Draw the public tasks of every client in a step."""

    @abstractmethod
    def choose(
        self, answers: Answers, memory: dict[str, Any], draw: Stream
    ) -> tuple[dict[int, list[Chosen]], dict[int, dict[str, Any]]]:
        """Choose for every client which answers of others it learns from, and the plain values that it receives.

        Args:
            answers: The graded answers of this step.
            memory: The server's memory, which is kept from step to step and may be changed.
            draw: The stream of the step.
        """

    @abstractmethod
    def learn_from(
        self,
        local: LocalTraining,
        own: Sequence[Group],
        others: Sequence[tuple[Trajectory, Mapping[str, Any]]],
        control: Mapping[str, Any],
    ) -> dict[str, float]:
        """Take one step at a client, and return its metrics.

        Args:
            local: The client's learner.
            own: Its answers, a group for each task.
            others: Answers of others in its tokens, each with its `group`, `author` and `logprobs`.
            control: The plain values of the server.
        """

    # ---- server -------------------------------------------------------------------------------------------------------

    def initial_state(self) -> ServerState:
        return ServerState({})

    def policy_parameters(self, state: ServerState) -> Mapping[str, Array]:
        """The run's agent as it was loaded."""
        return self.runtime.initial_weights

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """All steps of a round."""
        settings, memory = self.settings, dict(state.memory)
        periods, left = divmod(settings.local_steps, settings.swap_period)
        alive, counts = list(this_round.participants), dict[str, float]()
        for period in range(periods):
            tasks = self.draw_tasks(alive, this_round.stream("public", period))
            control = {"first": period == 0, "steps": settings.swap_period - 1, "period": period}
            asked = {client: Message(control={**control, "tasks": tasks[client]}) for client in alive}
            answers = self._collect_answers(asked, tasks, this_round)
            chosen, controls = self.choose(answers, memory, this_round.stream("share", period))
            messages = {
                client: Message(
                    text={"answers": [_pack(one) for one in chosen[client]]}, control=controls.get(client, {})
                )
                for client in answers
            }
            alive = [client for client, _ in this_round.clients.iter_replies("learn", messages)]
            graded = [one.graded.success for own in answers.values() for group in own for one in group]
            found = {"public/answers": len(graded), "public/right": sum(graded)}
            found["public/shared"] = sum(len(each) for each in chosen.values())
            counts = {name: counts.get(name, 0.0) + float(value) for name, value in found.items()}
        last = Message(control={"first": periods == 0, "steps": left})
        return self._finish(replace(state, memory=memory), dict.fromkeys(alive, last), counts, this_round)

    def _finish(
        self, state: ServerState, asked: Mapping[int, Message], counts: Mapping[str, float], this_round: Round
    ) -> RoundResult:
        """The remaining private steps, and the record of the round."""
        asked_count = len(this_round.participants)
        scale = Scale(self.learning, asked=asked_count, rows_per_episode=self.runtime.env.max_turns)
        work = self.count_client_work(self.settings, scale)
        reports: dict[int, Report] = {}
        refused: list[Failure] = []
        for client, reply in this_round.clients.iter_replies("finish", asked):
            report = read_report(client, reply, work, self.runtime.spec.sampled_episodes)
            if isinstance(report, Failure):
                refused.append(report)
            else:
                reports[client] = report
        this_round.clients.refuse(refused)
        own = {client: dict(report.metrics) for client, report in reports.items()}
        metrics = {**mean_metrics(list(own.values())), **summarise_local_models(own), **counts}
        episodes = [episode for report in reports.values() for episode in report.episodes]
        return RoundResult(state, metrics=metrics, clients=own, episodes=episodes)

    def _collect_answers(
        self, asked: Mapping[int, Message], tasks: Mapping[int, Sequence[str]], this_round: Round
    ) -> dict[int, list[list[Answer]]]:
        """Every client's answers to its tasks, graded here; malformed ones are refused."""
        found: dict[int, list[list[Answer]]] = {}
        malformed: list[Failure] = []
        for client, reply in this_round.clients.iter_replies("generate", asked):
            try:
                found[client] = self._read_answers(reply.text.get("groups"), tasks[client])
            except DataError as error:
                malformed.append(Failure(client, "refused", f"malformed answers: {error}"))
        this_round.clients.refuse(malformed)
        return found

    def _read_answers(self, plain: Any, tasks: Sequence[str]) -> list[list[Answer]]:
        size = self.learning.group_size
        whole = isinstance(plain, list) and all(isinstance(group, list) and len(group) == size for group in plain)
        if not whole or len(plain) != len(tasks):
            raise DataError(f"expected {size} answers to each of {len(tasks)} tasks")
        return [[grade(self.public_env, task, one) for one in group] for task, group in zip(tasks, plain, strict=True)]

    # ---- agents of clients --------------------------------------------------------------------------------------------

    def find_agent(self, client: int) -> int:
        """Return the number of a client's agent.

        Args:
            client: Number of the client.
        """
        return 0 if self.settings.agents is None else client % len(self.settings.agents)

    @cached_property
    def _models(self) -> dict[int, ResidentModel]:
        return {}

    def open_agent(self, number: int) -> ResidentModel:
        """The model of an agent, loaded once in this process.

        Args:
            number: The agent's number.
        """
        if self.settings.agents is None:
            return self.runtime.resident
        if number not in self._models:
            self._models[number] = self.runtime.open_model(self.settings.agents[number], f"agent {number}")
        return self._models[number]

    def resources(self, client: int) -> Site:
        """The client's tasks and environment with its own agent."""
        return self.runtime.get_site(client, self.open_agent(self.find_agent(client)), self.learning)

    def client_parameters(self, state: ServerState, client: int, kept: Message) -> Mapping[str, Array]:
        """The parameters that the client trained last; at the start its agent as it was loaded."""
        number = self.find_agent(client)
        return kept.sets.get(f"weights-{number}") or self.open_agent(number).initial_weights

    def load_client(self, state: ServerState, client: int, kept: Message) -> TokenAgent:
        """The client's agent with its policy."""
        model = self.open_agent(self.find_agent(client))
        return model.load(copy_arrays(self.client_parameters(state, client, kept)))

    # ---- client -------------------------------------------------------------------------------------------------------

    def generate(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Private steps, then answers to the public tasks, kept for the step that follows."""
        local, metrics, _ = self._take_private_steps(state, message, client)
        seed = client.derive("public", message.control["period"])
        rollouts = local.collect_rollouts(
            seed, tasks=[str(one) for one in message.control["tasks"]], env=self.public_env
        )
        stop_ids = client.resources.agent.tokenizer.stop_ids
        sent = [[pack_answer(one, stop_ids) for one in group] for group in rollouts.groups]
        plain = [[to_plain(one) for one in group] for group in rollouts.groups]
        cost = {name: value for name, value in rollouts.compute_metrics().items() if name in COSTS}
        return self._keep(local, client, [*metrics, cost], plain), Message(text={"groups": sent})

    def learn(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """One step on the client's own answers and on those of others."""
        site = client.resources
        local = self._resume(state, client)
        own = [tuple(from_plain(plain) for plain in group) for group in state.text["groups"]]
        others = []
        for plain in message.text["answers"]:
            episode = read_answer(site.agent, self.public_env, plain)
            if episode is not None:
                others.append((episode, plain))
        metrics = self.learn_from(local, own, others, message.control)
        metrics["public/unread"] = float(len(message.text["answers"]) - len(others))
        return self._keep(local, client, [*state.control["metrics"], metrics], []), Message()

    def finish(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """The remaining steps, and the report."""
        local, metrics, groups = self._take_private_steps(state, message, client)
        measured = evaluate_local_model(self.runtime, client.resources, local.agent, client.round)
        report = {"metrics": {**mean_metrics(metrics), **measured}, "episodes": self.sample_episodes(groups, client)}
        return self._keep(local, client, [], []), Message(report=report)

    def _take_private_steps(
        self, state: Message, message: Message, client: ClientContext[Site]
    ) -> tuple[LocalTraining, list[dict[str, float]], tuple[Group, ...]]:
        local = self._resume(state, client)
        metrics = [] if message.control["first"] else list(state.control["metrics"])
        groups: tuple[Group, ...] = ()
        if steps := int(message.control["steps"]):
            local.skipped = self.count_public_steps(local.step)
            report = local.run(steps, seed=client.derive("train"))
            metrics, groups = [*metrics, *report.steps], report.groups
        return local, metrics, groups

    def _resume(self, state: Message, client: ClientContext[Site]) -> LocalTraining:
        """The client's training where it was left; at first, its agent as it was loaded. Its steps are numbered as those of a
        client that takes part in every round, for the schedule of the learning rate and for passes over its tasks."""
        number, site = self.find_agent(client.id), client.resources
        weights = copy_arrays(state.sets.get(f"weights-{number}") or site.model.initial_weights)
        moments = copy_arrays(state.sets.get(f"optimizer-{number}", {}))
        begun = (client.round - 1) * self.settings.local_steps
        start = SiteState(weights, moments, step=max(begun, int(state.control.get("step", 0))))
        return site.open_learner(start, run_steps=self.runtime.rounds * self.settings.local_steps)

    def _keep(
        self,
        local: LocalTraining,
        client: ClientContext[Site],
        metrics: Sequence[Mapping[str, float]],
        groups: list[Any],
    ) -> Message:
        number, after = self.find_agent(client.id), local.get_state(optimizer=True)
        return Message(
            sets={f"weights-{number}": after.weights, f"optimizer-{number}": after.optimizer},
            control={"step": after.step, "metrics": [dict(one) for one in metrics]},
            text={"groups": groups},
        )

    # ---- what the methods declare, and what they check ------------------------------------------------------------------

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        """Return the operations of clients. A client keeps its weights, its moments, and between two calls its answers."""
        kept: dict[str, Mapping[str, ArrayForm]] = {}
        longest = 0
        for number in range(len(self.settings.agents or (None,))):
            model = self.open_agent(number)
            kept[f"weights-{number}"] = model.make_weight_forms(optional=True)
            kept[f"optimizer-{number}"] = make_moment_forms(model.initial_weights)
            longest = max(longest, model.agent.policy.context_length)
        each = 2 * EPISODE_BYTES + (TOKEN_BYTES + 16) * longest  # as text, and in the tokens of any of the agents
        answers = self.settings.public_tasks * self.learning.group_size * each
        everyone = answers * max(1, len(self.client_ids()))
        state, plain = Form(sets=kept, text=CONTROL_BYTES + answers), Form(text=CONTROL_BYTES)
        ask = Form(text=CONTROL_BYTES + 256 * self.settings.public_tasks)
        reported = Form(text=CONTROL_BYTES, report=self.report_bytes)
        return {
            "generate": Operation(self.generate, request=ask, reply=Form(text=answers), state=state),
            "learn": Operation(self.learn, request=Form(text=CONTROL_BYTES + everyone), reply=plain, state=state),
            "finish": Operation(self.finish, request=plain, reply=reported, state=state),
        }

    @classmethod
    def describe(cls, settings: S, scale: Scale) -> Card:
        """Return the card: private steps, and public ones in which every client sends its answers and reads those of others."""
        periods = settings.local_steps // settings.swap_period
        sent = Sent("answers", "answers to the public tasks, as text", "the server, and other clients")
        agents = settings.agents or ()
        return replace(
            super().describe(settings, scale),
            round=cls.count_client_work(settings, scale) * scale.asked,
            roles=("public",) if periods else (),
            sent=(METRICS, sent) if periods else (METRICS,),
            trains_local_models=True,
            value_refusal="it compares the answers to a question, its own and those of others",
            second_models=tuple(
                SecondModel(f"agent {number}", one, scale.learning, settings.local_steps)
                for number, one in enumerate(agents)
            ),
        )

    @classmethod
    def count_client_work(cls, settings: S, scale: Scale) -> Work:
        """The work of one client in a round."""
        periods = settings.local_steps // settings.swap_period
        answers = settings.public_tasks * scale.learning.group_size
        foreign = cls.count_shared(settings, scale)
        public = Work(
            episodes=answers,
            read=foreign,
            optimizer_steps=scale.count_updates(answers + foreign),
            answers_up=answers,
            answers_down=foreign,
        )
        return scale.count_local_work(settings.local_steps - periods) + public * periods

    @classmethod
    @abstractmethod
    def count_shared(cls, settings: S, scale: Scale) -> int:
        """The maximum number of answers of others that a client receives in a public step."""


def pack_answer(trajectory: Trajectory, stop_ids: frozenset[int]) -> dict[str, Any]:
    """An answer as text, with the mean log-prob of the tokens of each turn under the policy that wrote it."""
    owners = np.concatenate([*map_tokens_to_turns(trajectory), np.zeros(0, dtype=np.int64)])
    said = np.concatenate([*(one.logprobs[one.mask] for one in trajectory.segments), np.zeros(0)])
    means = [
        float(said[owners == turn].mean()) if (owners == turn).any() else 0.0 for turn in range(len(trajectory.turns))
    ]
    return {**make_candidate(trajectory, "replies", stop_ids), "logprobs": means}


def grade(env: TextEnv, task: str, plain: Any) -> Answer:
    """An answer from another machine, checked, with the grades of the environment that replays it."""
    if not isinstance(plain, Mapping):
        raise DataError(f"an answer to {task} is no mapping")
    given: list[Any] = [plain.get(key) for key in ("actions", "replies", "ended", "logprobs", "seed")]
    actions, replies, ends, said, seed = given
    lists = [actions, replies, ends, said]
    if (
        not all(isinstance(one, list) for one in lists)
        or len({len(one) for one in lists}) != 1
        or type(seed) is not int
    ):
        raise DataError(f"an answer to {task} needs a seed, and as many actions, replies, ends and log-probs")
    if not all(isinstance(one, str) for one in (*actions, *replies)) or not all(isinstance(one, bool) for one in ends):
        raise DataError(f"an answer to {task} needs texts as actions and replies, and true or false as ends")
    if not all(isinstance(one, float) and -MAX_SURPRISAL <= one <= 1e-3 for one in said):
        raise DataError(f"an answer to {task} has an invalid log-prob")
    turns = tuple(
        Turn("", reply, (act,), reward=0.0, valid=True, format=True)
        for act, reply in zip(actions, replies, strict=True)
    )
    candidate = {"actions": actions, "replies": replies, "ended": ends, "seed": seed, "task": task}
    return Answer(candidate, tuple(said), regrade_trajectory(env, Trajectory(task, seed, turns)))


def _pack(one: Chosen) -> dict[str, Any]:
    """An answer in the message to a client."""
    return {**one.answer.candidate, "logprobs": list(one.answer.logprobs), "group": one.group, "author": one.author}


def read_answer(agent: TokenAgent, env: TextEnv, plain: Mapping[str, Any]) -> Trajectory | None:
    """An answer of another client in the prompts and tokens of `agent`, graded here; None if it does not fit."""
    episode = reread(agent, env, env.pool[str(plain["task"])], plain)
    if episode is None:
        return None
    turns = tuple(turn._replace(format=agent.parse(env, turn.reply)[1]) for turn in episode.turns)
    return regrade_trajectory(env, replace(episode, turns=turns))
