"""FedGRPO: the policy stays on the server; clients are experts that score its answers. Weights are never sent.

    before round 1, and every `expert_refresh` rounds:
      client   trains a model of its own on its own tasks (`expert_steps`; 0 = the base model), which never leaves the client
      server   sends the auxiliary questions with their gold, once
      client   answers them, returns one bit per example: right or wrong
    server   for each question x of its unlabelled set that is drawn for the round:
    server     embeds x (frozen base model), finds the L nearest auxiliary examples                    (lines 1-5)
    server     competence of client k: the share of those L that it got right; picks the M best        (lines 8, 11)
    server     samples G candidates, sends x and the candidates to the M experts only                  (line 12)
    client     AE: it holds x itself, and checks the candidate against its gold                        (lines 14, 15)
               ME: else its own model scores: `self_answer` answers x and compares, `reward_model` gives the
               likelihood of the candidate
    client     returns one number per candidate                                                        (line 16)
    server     r[k, i] = 8 * s[k, i] + format[i], standardised, one policy step                        (lines 18-21)

`answers` says who may check against gold: no client (`off`), clients that hold the question (`own`; with `holders_first` they
are preferred to more competent clients), or every client (`all`, as in the published code: then this is central GRPO).
`expert_agent` gives clients a model of another kind than the server's; candidates are then sent as text, and each expert puts
them into its own prompts and tokens. Clients and server share only an environment and the text of its tasks.

The paper's lines 19 and 20 standardise the experts' scores of ONE candidate, which then sum to zero; `experts.py` has three
readings that give a learning signal. Missing or invalid scores are left out; a question without any score is skipped. In
multi-turn environments experts score candidates by replaying their actions (AE); there, models score as `reward_model` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from fedagentgym.agents.settings import SaidAgent
from fedagentgym.algorithms.base import CONTROL_BYTES, EPISODE_BYTES, TOKEN_BYTES, BaseAlgorithm
from fedagentgym.algorithms.card import METRICS, Card, Scale, SecondModel, Sent, Work
from fedagentgym.algorithms.experts import (
    HOLDER,
    TASK_BYTES,
    Aggregate,
    Answers,
    Detail,
    Judgement,
    Neighbourhoods,
    Scorer,
    choose_experts,
    combine_scores,
    compute_competence,
    expert_metrics,
    find_score_error,
    make_candidate,
    make_task_records,
    pack_bits,
    score_metrics,
    unpack_bits,
)
from fedagentgym.algorithms.reports import read_reports, sum_costs
from fedagentgym.algorithms.runtime import ResidentModel, Runtime, Site, Weights, copy_arrays, make_site_state
from fedagentgym.base.errors import OptionError, RefusedError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.federation.algorithm import Failure, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import ArrayForm, AtMost, Form, Message
from fedagentgym.learning.advantages import Deviation, kept_format, objective_values
from fedagentgym.learning.settings import LearningSettings
from fedagentgym.learning.state import mean_metrics
from fedagentgym.learning.trajectory import Group, format_line

EXPERT = "expert"
"""The set of a client's state that holds the parameters of its expert."""
NOT_ANSWERED = 2
SERVER_ID = -1
ID_BYTES = 256
MAX_CONTEXT = 1 << 15
"""Assumed context of the server's model in tokens, to bound a candidate's text where experts do not load that model."""

WITH_GOLD = ("reward", "accuracy", "f1")
"""Objectives that need a question's answer, which the experts have and the server has not."""


class FedGRPOSettings(Settings):
    """`algorithm: {name: fedgrpo, experts: 2, neighbours: 20, ...}`; needs the roles `auxiliary` and `server`."""

    name: Literal["fedgrpo"] = "fedgrpo"
    experts: int = Field(default=2, ge=1, description="clients that score a question (M)")
    neighbours: int = Field(default=20, ge=1, description="auxiliary examples that decide about competence (L)")
    selection: Literal["competence", "oracle", "random"] = Field(
        default="competence",
        description="who scores; competence: the clients best at the examples most like the question; oracle: those best at "
        "examples of its category; random: any client, as in the published code",
    )
    aggregate: Aggregate = Field(
        default="pool",
        description="how scores become advantages; pool: over all of them; per_expert: per expert first; split: each expert"
        " scores candidates of its own",
    )
    std: Deviation = Field(
        default="population",
        description="standard deviation by which scores are divided; population: over n; sample: over n - 1; none: no division,"
        " as in the published code",
    )
    scorer: Judgement = Field(
        default="self_answer",
        description="how an expert's model scores answers to a question whose answer it does not hold",
    )
    answers: Answers = Field(
        default="own",
        description="who checks candidates against gold (AE); off: no client; own: holders of the question; holders_first: "
        "holders, who are preferred as experts; all: every client, as in the published code",
    )
    expert_agent: SaidAgent | None = Field(
        default=None, description="the clients' model for scoring, if it differs from the server's; null: the same"
    )
    expert_steps: int = Field(default=0, ge=0, description="policy steps of each client's own expert before round 1")
    expert_learning: dict[str, Any] = Field(
        default_factory=dict,
        description="keys of `learning` that differ for the experts' training, such as learning_rate",
    )
    expert_refresh: int = Field(default=0, ge=0, description="rounds between renewals of the experts; 0: never")
    answer_weight: float = Field(default=8.0, ge=0.0, description="weight of the experts' score")
    format_weight: float = Field(default=1.0, ge=0.0, description="weight of the format reward")

    @field_validator("answers", mode="before")
    @classmethod
    def _read_truth_value(cls, value: Any) -> Any:
        """YAML reads a bare `off` as false; true is short for `own`."""
        return {True: "own", False: "off"}[value] if isinstance(value, bool) else value

    def resolve_expert_learning(self, learning: LearningSettings) -> LearningSettings:
        """The policy step of the experts' training: the run's settings, updated with `expert_learning` key by key."""
        return LearningSettings.load({**learning.model_dump(), **self.expert_learning}, "algorithm.expert_learning")

    @property
    def asks_models(self) -> bool:
        """True if an expert's model is used: for competence, or for scoring candidates."""
        return self.answers != "all" or self.selection != "random"

    @model_validator(mode="after")
    def _check_expert_models(self) -> Self:
        if self.expert_learning and not self.expert_steps:
            raise ValueError("expert_learning is for the training of experts: set expert_steps")
        if self.answers != "all":
            return self
        if self.scorer != "self_answer":
            raise ValueError("with answers: all no model scores candidates: leave out scorer")
        trained = {
            "expert_agent": self.expert_agent,
            "expert_steps": self.expert_steps,
            "expert_refresh": self.expert_refresh,
        }
        if not self.asks_models and any(trained.values()):
            unused = next(name for name, value in trained.items() if value)
            raise ValueError(f"with answers: all and selection: random no expert's model is used: leave out {unused}")
        return self


class FedGRPO(BaseAlgorithm[FedGRPOSettings]):
    """Server side and client operations of FedGRPO; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = FedGRPOSettings

    def __init__(self, settings: FedGRPOSettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        learning = runtime.learning
        if learning.keep_optimizer:
            raise OptionError(
                "fedgrpo's server always keeps its optimizer, and experts start with a new one: leave out learning.keep_optimizer"
            )
        self._expert_learning = settings.resolve_expert_learning(learning)
        if self._expert_learning.advantage.uses_values:
            raise OptionError(
                "fedgrpo's experts have no value head: leave advantage: gae out of algorithm.expert_learning"
            )
        self._further: dict[str, float] = {}
        if settings.expert_steps:
            return
        plain = LearningSettings()  # the server's reward and advantages come from the experts
        if learning.advantage != plain.advantage or learning.format_penalty_on != plain.format_penalty_on:
            raise OptionError(
                "fedgrpo forms advantages from its experts' scores, as algorithm.aggregate and algorithm.std say: leave out"
                " learning.advantage and learning.format_penalty_on, or train experts with them (algorithm.expert_steps)"
            )
        own = {"score": settings.answer_weight, "format": settings.format_weight}
        if learning.objectives == plain.objectives:
            return
        said = {objective.name: objective.weight for objective in learning.objectives}
        self._further = {name: weight for name, weight in said.items() if name not in own and weight}
        with_gold = [name for name in self._further if name.partition("/")[0] in WITH_GOLD]
        if with_gold or any(said.get(name, 0.0) != weight for name, weight in own.items()):
            raise OptionError(
                f"fedgrpo's reward is {settings.answer_weight:g} x score + {settings.format_weight:g} x format (answer_weight and"
                " format_weight of algorithm), and further terms that need no answer, such as tags; learning.objectives"
                " differ from it: make them agree"
            )

    # ---- server ---------------------------------------------------------------------------------------------------

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """Let every client train its expert, and collect which examples each answers correctly."""
        clients = this_round.clients
        count = len(self.auxiliary.pool)
        if not self.settings.asks_models:
            none_right = np.zeros((len(clients.ids), count), dtype=np.uint8)
            return RoundResult(replace(state, memory={**state.memory, "right": none_right}))
        text: dict[str, Any] = {"auxiliary": make_task_records(self.auxiliary)}
        if self.asks_holders:
            text["questions"] = list(self.questions.pool.ids)
        examination = Message(text=text, control={"steps": self.settings.expert_steps})
        answers = clients.call("prepare", dict.fromkeys(clients.ids, examination))
        scale = Scale(self.learning, rows_per_episode=self.runtime.env.max_turns, roles={"auxiliary": count})
        asked = self.describe(self.settings, scale).preparation or Work()
        reports = read_reports(answers, dict.fromkeys(answers, asked), clients)
        answers = {client: answers[client] for client in reports}
        unasked = np.full((len(clients.ids), count), NOT_ANSWERED, dtype=np.uint8)
        known = np.array(
            state.memory.get("right", unasked)
        )  # a client that fails in a renewal keeps its former results
        for client, answer in answers.items():
            known[clients.ids.index(client)] = unpack_bits(answer.scores["right"], count)
        memory = {**state.memory, "right": known, "step": state.memory.get("step", 0)}
        if self.asks_holders:
            size = len(self.questions.pool)
            held = np.array(state.memory.get("held", np.zeros((len(clients.ids), size), dtype=np.uint8)))
            for client, answer in answers.items():
                held[clients.ids.index(client)] = unpack_bits(answer.scores["held"], size)
            memory["held"] = held
        shares = {
            client: float(unpack_bits(answer.scores["right"], count).mean()) for client, answer in answers.items()
        }
        by_client = {client: {**numbers, "auxiliary/right": shares[client]} for client, numbers in reports.items()}
        right = float(np.mean(list(shares.values()))) if shares else 0.0
        metrics = {"auxiliary/right": right, **sum_costs(by_client.values())}
        return RoundResult(replace(state, memory=memory), metrics=metrics, clients=by_client)

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Choose experts for each question; one call to all experts; one policy step."""
        refresh = self.settings.expert_refresh
        renewed = RoundResult(state)
        if refresh and this_round.number > 1 and (this_round.number - 1) % refresh == 0:
            renewed = self.prepare(state, this_round)
            state = renewed.state
        seed = this_round.derive("play")
        server = self.runtime.get_site(SERVER_ID, env=self.questions)
        local = server.open_learner(make_site_state(state), run_steps=self.runtime.rounds)
        tasks = local.draw_tasks(seed)
        experts = self.select_experts(tasks, state, this_round)
        rollouts = local.collect_rollouts(seed, tasks=tasks, group_size=self.candidates)
        scores, costs = self.request_scores(rollouts.groups, experts, this_round)
        combined = [
            self.compute_advantages(group, matrix) for group, matrix in zip(rollouts.groups, scores, strict=True)
        ]
        learnable = [
            (group, given) for group, given in zip(rollouts.groups, combined, strict=True) if given is not None
        ]
        report = local.update([group for group, _ in learnable], advantages=[given.tolist() for _, given in learnable])
        after = local.get_state(optimizer=True)
        skipped = {"questions/skipped": float(len(rollouts.groups) - len(learnable))}
        own = rollouts.compute_metrics() | report.metrics | skipped | score_metrics(scores)
        scored = expert_metrics(experts, scores)
        return RoundResult(
            ServerState(after.weights, after.optimizer, {**state.memory, "step": after.step}),
            metrics=mean_metrics([renewed.metrics, costs, own]),
            clients={
                client: {**renewed.clients.get(client, {}), **scored.get(client, {})}
                for client in {**renewed.clients, **scored}
            },
            episodes=[format_line(group[0]) for group in rollouts.groups[: self.runtime.spec.sampled_episodes]],
        )

    def select_experts(self, questions: Sequence[str], state: ServerState, this_round: Round) -> list[list[int]]:
        """The clients that score each question."""
        if self.settings.selection == "random":
            return [self._choose(question, None, state, this_round) for question in questions]
        # all examples of the question's category, or all of them if it has none
        if self.settings.selection == "oracle":
            pool = self.auxiliary.pool
            examples = np.array([pool.category_names[code] for code in pool.category_codes])
            same = [np.flatnonzero(examples == self.questions.pool.get_category(question)) for question in questions]
            near = [found if len(found) else np.arange(len(examples)) for found in same]
        else:
            near = self._neighbourhoods.find(questions)
        return [self._choose(*pair, state, this_round) for pair in zip(questions, near, strict=True)]

    def _choose(
        self, question: str, near: NDArray[np.int64] | None, state: ServerState, this_round: Round
    ) -> list[int]:
        """The experts of one question: by competence on these examples, or random; holders first if they are known."""
        right = {
            client: row == 1
            for client, row in zip(this_round.clients.ids, state.memory["right"], strict=True)
            if (row != NOT_ANSWERED).all()
        }
        skill = dict.fromkeys(right, 0.0) if near is None else compute_competence(right, near)
        if self.asks_holders:
            holds = state.memory["held"][:, self.questions.pool.find_position(question)]
            for client, holder in zip(this_round.clients.ids, holds, strict=True):
                if client in skill:
                    skill[client] += HOLDER * float(holder)
        draw = stream(this_round.seed, "experts", this_round.number, question)
        return choose_experts(skill, min(self.settings.experts, len(right)), draw)

    @cached_property
    def _neighbourhoods(self) -> Neighbourhoods:
        return Neighbourhoods(self.runtime.resident, self.questions, self.auxiliary, self.settings.neighbours)

    def request_scores(
        self, groups: Sequence[Group], experts: Sequence[Sequence[int]], this_round: Round
    ) -> tuple[list[NDArray[np.float64]], dict[str, float]]:
        """The score matrix of each question, NaN for missing scores, and the cost of scoring. An invalid reply is refused as a
        whole."""
        size = self.learning.group_size
        matrices = [np.full((self.settings.experts, size), np.nan) for _ in groups]
        places: dict[int, list[tuple[int, int]]] = {}
        for index, chosen in enumerate(experts):
            for row, client in enumerate(chosen):
                places.setdefault(client, []).append((index, row))
        messages = {
            client: Message(text={"questions": [self._make_question(groups[index], row) for index, row in rows]})
            for client, rows in places.items()
        }
        answers = this_round.clients.call("score", messages) if messages else {}
        asked = {client: Work(scored=len(rows)) for client, rows in places.items()}
        reports = read_reports(answers, asked, this_round.clients)
        scored = {client: np.asarray(answers[client].scores["scores"], dtype=np.float64) for client in reports}
        refused = {
            client: reason for client, rows in scored.items() if (reason := find_score_error(rows, len(places[client])))
        }
        this_round.clients.refuse([Failure(client, "refused", reason) for client, reason in refused.items()])
        for client in scored.keys() - refused.keys():
            for (index, row), scores in zip(places[client], scored[client], strict=True):
                matrices[index][row] = scores
        return matrices, sum_costs(reports.values())

    def _make_question(self, group: Group, row: int) -> dict[str, Any]:
        """The message to one expert about one question: the task without its gold, and the candidates to score."""
        size = self.learning.group_size
        own = group[row * size : (row + 1) * size] if self.settings.aggregate == "split" else group
        stop_ids = self.runtime.agent.tokenizer.stop_ids
        (record,) = make_task_records(self.questions, [group[0].task])
        return {"task": record, "candidates": [make_candidate(each, self.detail, stop_ids) for each in own]}

    def compute_advantages(self, group: Group, scores: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """r = answer_weight * score + format_weight * format + further objectives, converted to one advantage per candidate."""
        # 1 if the reply has the required format: what the environment pays for it, or the result of the agent's parser
        if "format" in self.questions.reward_names:
            form = np.array([paid.max(initial=0.0) for paid in objective_values(group, "format")])
        else:
            form = np.array(kept_format(group))
        own = self.settings.format_weight * form
        for name, weight in self._further.items():
            own += weight * np.array([paid.sum() for paid in objective_values(group, name)])
        own = own.reshape(scores.shape) if self.settings.aggregate == "split" else own[None, :]
        rewards = self.settings.answer_weight * scores + own
        return combine_scores(rewards, self.settings.aggregate, self.settings.std)

    def check_start(self, asked: int) -> None:
        """Check the settings that depend on the clients and on the tasks of the roles.

        Args:
            asked: Number of clients that take part in a round.
        """
        super().check_start(asked)
        clients, examples = len(self.runtime.client_split), len(self.auxiliary.pool)
        if self.settings.selection == "competence" and self.settings.neighbours > examples:
            raise OptionError(
                f"algorithm.neighbours asks for {self.settings.neighbours} examples, partition.roles.auxiliary holds {examples}"
            )
        if self.settings.experts > clients:
            raise OptionError(
                f"algorithm.experts asks for {self.settings.experts} experts, there are {clients} clients"
            )
        compares = self.settings.answers != "all" and self.settings.scorer == "self_answer"
        if compares and self.questions.takes == "command":
            raise OptionError(
                f"{self.questions.id} has no single answers to compare: use algorithm.scorer=reward_model"
            )

    # ---- client ---------------------------------------------------------------------------------------------------

    def train_expert(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Train the client's own model, and report which of the auxiliary questions it answers correctly."""
        scorer = self._open_scorer(state, client)
        metrics: dict[str, float] = {}
        weights: Weights = {}
        if steps := int(message.control["steps"]):
            renewals = max(client.round - 1, 0) // refresh if (refresh := self.settings.expert_refresh) else 0
            metrics, weights = scorer.train(steps, client.derive("expert"), before=renewals * steps)
        sent = {"right": pack_bits(scorer.solve_tasks(message.text["auxiliary"], client.derive("auxiliary")))}
        if self.asks_holders:
            own = client.resources.env.pool
            sent["held"] = pack_bits([str(question) in own for question in message.text["questions"]])
        kept = Message(sets={EXPERT: weights}) if weights else state
        metrics = mean_metrics([metrics, scorer.costs])
        return kept, Message(scores=sent, report={"metrics": metrics})

    def score(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """One number for each candidate of each question."""
        scorer = self._open_scorer(state, client)
        rows = scorer.score_questions(message.text["questions"], client.derive("answer"))
        return state, Message(scores={"scores": np.array(rows, dtype=np.float32)}, report={"metrics": scorer.costs})

    def _open_scorer(self, state: Message, client: ClientContext[Site]) -> Scorer:
        """The client with its expert; with the initial model if it has none yet."""
        weights = copy_arrays(state.sets.get(EXPERT, {})) or self.expert_model.initial_weights
        settings = self.settings
        return Scorer(
            self.runtime,
            client.resources,
            weights,
            answers=settings.answers,
            judgement=settings.scorer,
            steps=settings.expert_steps or None,
        )

    # ---- what the server and the clients work with -----------------------------------------------------------------

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        examples, questions = len(self.auxiliary.pool), self.learning.tasks_per_step
        if self.settings.expert_agent is None:
            candidate = self.episode_bytes
        else:  # a client with a model of its own does not load the server's
            candidate = EPISODE_BYTES + TOKEN_BYTES * (self.runtime.spec.agent.context_length or MAX_CONTEXT)
        asked = questions * (TASK_BYTES + self.candidates * candidate)
        forms = {"right": _bits(examples)}
        known = 0
        if self.asks_holders:
            known = len(self.questions.pool)
            forms["held"] = _bits(known)
        scores = ArrayForm("float32", (AtMost(questions), self.learning.group_size), finite=False)
        expert = Form(sets={EXPERT: self.expert_model.make_weight_forms(optional=True)})
        prepared = Form(text=CONTROL_BYTES + examples * TASK_BYTES + known * ID_BYTES)
        return {
            "prepare": Operation(self.train_expert, prepared, Form(scores=forms), expert),
            "score": Operation(self.score, Form(text=CONTROL_BYTES + asked), Form(scores={"scores": scores}), expert),
        }

    @cached_property
    def auxiliary(self) -> TextEnv:
        """The labelled examples that determine competence."""
        return self.runtime.open_role_env("auxiliary")

    @cached_property
    def questions(self) -> TextEnv:
        """The server's own tasks, without their answers."""
        return self.runtime.open_role_env("server")

    @cached_property
    def expert_model(self) -> ResidentModel:
        """The model with which clients score: of the server's kind, or of their own."""
        chosen = self.settings.expert_agent
        return self.runtime.resident if chosen is None else self.runtime.open_model(chosen, "expert agent")

    def resources(self, client: int) -> Site:
        """The client's environment and tasks with its expert's model."""
        return replace(self.runtime.get_site(client, self.expert_model), learning=self._expert_learning)

    @property
    def asks_holders(self) -> bool:
        """True if clients report which of the server's questions they hold."""
        return self.settings.answers == "holders_first"

    @property
    def detail(self) -> Detail:
        """The form in which experts receive a candidate."""
        if self.settings.scorer == "self_answer":
            return "actions"
        return "tokens" if self.settings.expert_agent is None else "replies"

    @property
    def candidates(self) -> int:
        """Candidates per question: with `split` each expert scores G of its own."""
        group = self.learning.group_size
        return group * self.settings.experts if self.settings.aggregate == "split" else group

    # ---- what the method declares, and what it checks ---------------------------------------------------------------

    @classmethod
    def describe(cls, settings: FedGRPOSettings, scale: Scale) -> Card:
        """Return the card: one policy step of the server a round; the experts get the candidates, and send a number for each.

        The method uses the answers of the auxiliary questions, and those of the clients' tasks to train experts or check
        candidates. A client can use others' answers, or know the ids of the server's questions, only if all divide one pool.
        """
        questions, group = scale.learning.tasks_per_step, scale.learning.group_size
        played = questions * group * (settings.experts if settings.aggregate == "split" else 1)
        asked = questions * settings.experts
        by_model = 0 if settings.answers == "all" else asked
        reads = settings.scorer == "reward_model"
        what = "a number for each candidate answer of the server, and which of the auxiliary questions its model solves"
        learning = settings.resolve_expert_learning(scale.learning)
        experts: tuple[SecondModel, ...] = ()
        preparation = Work()
        if settings.expert_agent is not None:
            experts = (SecondModel("experts", settings.expert_agent, learning, settings.expert_steps),)
        # each expert is trained, and says which examples it solved, and which questions its client holds
        if settings.asks_models:
            examples = scale.roles.get("auxiliary", 0)
            held = scale.roles.get("server", 0) if settings.answers == "holders_first" else 0
            trained = replace(scale, learning=learning).count_local_work(settings.expert_steps)
            examined = Work(scored=examples, tasks_down=examples, bits_up=examples + held)
            preparation = (examined + trained) * scale.clients
        refusal = f"answers {settings.answers!r} asks clients by the ids of the server's questions, use 'own' or 'off'"
        return replace(
            super().describe(settings, scale),
            preparation=preparation,
            renewal=settings.expert_refresh,
            round=Work(
                episodes=played,
                scored=0 if reads else by_model,
                read=by_model * group if reads else 0,
                optimizer_steps=scale.count_updates(played),
                answers_down=asked * group,
                tasks_down=asked,
                scores_up=asked * group,
            ),
            roles=("auxiliary", "server"),
            labelled=None if settings.expert_steps or settings.answers != "off" else ("auxiliary",),
            sent=(Sent("scores", what), *((METRICS,) if settings.expert_steps else ())),
            second_models=experts,
            value_refusal="its advantages come from its experts' scores",
            held_refusal=refusal if settings.answers in ("all", "holders_first") else "",
        )

    def check_held(self, site: Site) -> None:
        """Refuse an environment that takes commands: the server sends its tasks by id, and held tasks have ids of their own."""
        if site.env.takes == "command":
            raise RefusedError("it plays an environment of commands, whose tasks FedGRPO's server can only name")


def _bits(count: int) -> ArrayForm:
    return ArrayForm("uint8", ((count + 7) // 8,))
