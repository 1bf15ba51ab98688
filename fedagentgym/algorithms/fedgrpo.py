"""FedGRPO: the policy stays on the server; clients are experts who score its answers. Weights never travel.

    before round 1, and every `expert_refresh` rounds:
      client   trains a model of its own on its own tasks (`expert_steps`; 0 = the base model), which never leaves it
      server   sends the auxiliary questions with their gold, once
      client   answers them, returns one bit per example: right or wrong
    server   for each question x of its unlabelled set that is drawn for the round:
    server     embeds x (frozen base model), finds the L nearest auxiliary examples                    (lines 1-3)
    server     competence of client k: the share of those L that it got right; picks the M best        (lines 4-6)
    server     samples G candidates, sends x and the candidates to the M experts only                  (line 7)
    client     AE: it holds x itself, and checks the candidate against its gold                        (line 8)
               ME: else its own model judges: `self_answer` answers x and compares, `reward_model` says how likely
               the candidate is to it
    client     returns one number per candidate                                                        (line 9)
    server     r[k, i] = 8 * s[k, i] + format[i], standardised, one policy step                        (lines 10-11)

The paper's line 10 standardises the experts' scores of ONE candidate, which sums to zero; `experts.py` has the three readings
that learn. An expert that fails, or answers what is no score, leaves holes; a question without any score is skipped. Experts
judge candidates of multi-turn worlds by replaying their actions (AE); their models then judge as `reward_model` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.algorithms.base import CONTROL_BYTES, BaseAlgorithm
from fedagentgym.algorithms.support.experts import (
    ESTIMATORS,
    choose_experts,
    compute_competence,
    find_nearest,
    pack_bits,
    unpack_bits,
)
from fedagentgym.algorithms.support.replies import read_metrics
from fedagentgym.algorithms.support.runtime import Site
from fedagentgym.algorithms.support.scoring import Scorer
from fedagentgym.algorithms.support.state_arrays import copy_arrays, make_site_state
from fedagentgym.algorithms.support.task_transfer import TASK_BYTES, make_task_records
from fedagentgym.algorithms.support.work import Scale, Work
from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import stream
from fedagentgym.envs.core import TextEnv
from fedagentgym.federation.algorithm import Round, RoundResult
from fedagentgym.federation.clients import successful_replies
from fedagentgym.federation.failures import Failure
from fedagentgym.federation.message import ArrayForm, AtMost, Form, Message
from fedagentgym.federation.operation import ClientContext, Operation
from fedagentgym.federation.server_state import ServerState, add_prefix, strip_prefix
from fedagentgym.learning.local import LocalTraining, get_trainable_policy
from fedagentgym.learning.objectives import objective_values
from fedagentgym.learning.trajectory import Group, to_plain

EXPERT_PREFIX = "expert/"
NOT_ANSWERED = 2
SERVER_ID = -1


class FedGRPOSettings(Settings):
    """`algorithm: {name: fedgrpo, experts: 2, neighbours: 20, ...}`; needs the roles `auxiliary` and `server`."""

    name: Literal["fedgrpo"] = "fedgrpo"
    experts: int = Field(default=2, ge=1, description="clients that score a question (M)")
    neighbours: int = Field(default=20, ge=1, description="auxiliary examples that decide about competence (L)")
    selection: Literal["competence", "random"] = Field(
        default="competence", description="who scores: the most competent, or (as the published code does) anybody"
    )
    aggregate: Literal["pool", "per_expert", "split"] = Field(
        default="pool", description="how scores become advantages: over all, per expert first, or own candidates each"
    )
    scorer: Literal["self_answer", "reward_model"] = Field(
        default="self_answer", description="how an expert's model judges a question whose answer it does not hold"
    )
    answers: bool = Field(default=True, description="experts may use the gold of questions that they hold (AE)")
    expert_steps: int = Field(default=0, ge=0, description="policy steps of each client's own expert before round 1")
    expert_refresh: int = Field(default=0, ge=0, description="rounds between renewals of the experts; 0: never")
    answer_weight: float = Field(default=8.0, ge=0.0, description="weight of the experts' score")
    format_weight: float = Field(default=1.0, ge=0.0, description="weight of the format reward")


class FedGRPO(BaseAlgorithm[FedGRPOSettings]):
    """Server side and client operations of FedGRPO; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = FedGRPOSettings

    @classmethod
    def estimate_preparation(cls, settings: FedGRPOSettings, scale: Scale) -> Work | None:
        """Every client trains its expert and answers the auxiliary questions."""
        questions = scale.roles.get("auxiliary", 0)
        expert = Work(judged=questions, answers_down=questions, scores_up=questions)
        return (expert + scale.count_local_work(settings.expert_steps)) * scale.clients

    @classmethod
    def estimate_round(cls, settings: FedGRPOSettings, scale: Scale) -> Work | None:
        """One policy step of the server; the experts get the candidates and send one number for each."""
        questions, group = scale.learning.tasks_per_step, scale.learning.group_size
        played = questions * group * (settings.experts if settings.aggregate == "split" else 1)
        asked = questions * settings.experts
        judged = asked * group if settings.scorer == "reward_model" else asked
        return Work(
            episodes=played,
            judged=judged,
            optimizer_steps=scale.count_updates(played),
            answers_down=asked * group,
            scores_up=asked * group,
        )

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        examples, questions = len(self.auxiliary.pool), self.learning.tasks_per_step
        asked = questions * (TASK_BYTES + self.candidates * self.episode_bytes)
        bits = ArrayForm("uint8", ((examples + 7) // 8,))
        scores = ArrayForm("float32", (AtMost(questions), self.learning.group_size), finite=False)
        expert = Form(self.runtime.make_weight_forms(f"weights/{EXPERT_PREFIX}", optional=True))
        return {
            "prepare": Operation(
                self.train_expert,
                Form(text=CONTROL_BYTES + examples * TASK_BYTES),
                Form({"scores/right": bits}),
                expert,
            ),
            "score": Operation(self.score, Form(text=CONTROL_BYTES + asked), Form({"scores/scores": scores}), expert),
        }

    @cached_property
    def auxiliary(self) -> TextEnv:
        """The labelled examples that decide who is competent."""
        return self.runtime.open_role_env("auxiliary")

    @cached_property
    def questions(self) -> TextEnv:
        """The server's own tasks, without their answers."""
        return self.runtime.open_role_env("server")

    @property
    def candidates(self) -> int:
        """Candidates per question: with `split` each expert judges G of its own."""
        group = self.learning.group_size
        return group * self.settings.experts if self.settings.aggregate == "split" else group

    # ---- server ---------------------------------------------------------------------------------------------------

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """Let every client become an expert, and learn who is right where."""
        self._check_settings()
        clients = this_round.clients
        records = make_task_records(self.auxiliary)
        message = Message(text={"auxiliary": records}, control={"steps": self.settings.expert_steps})
        answers = successful_replies(clients.call("prepare", dict.fromkeys(clients.ids, message)))
        count = len(self.auxiliary.pool)
        unasked = np.full((len(clients.ids), count), NOT_ANSWERED, dtype=np.uint8)
        known = np.array(state.memory.get("right", unasked))  # who fails in a renewal is judged by what it did before
        for client, answer in answers.items():
            known[clients.ids.index(client)] = unpack_bits(answer.scores["right"], count)
        shares = {
            client: float(unpack_bits(answer.scores["right"], count).mean()) for client, answer in answers.items()
        }
        return RoundResult(
            replace(state, memory={"right": known, "step": state.memory.get("step", 0)}),
            metrics={"auxiliary/right": float(np.mean(list(shares.values()))) if shares else 0.0},
            clients={
                client: {**read_metrics(answers[client]), "auxiliary/right": shares[client]} for client in answers
            },
        )

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """One question after the other finds its experts; one call asks all of them; one policy step."""
        refresh = self.settings.expert_refresh
        if refresh and this_round.number > 1 and (this_round.number - 1) % refresh == 0:
            state = self.prepare(state, this_round).state
        local = self.start_server(state)
        rollouts = local.collect_rollouts(this_round.derive("play"), group_size=self.candidates)
        experts = [self.select_experts(group[0].task, state, this_round) for group in rollouts.groups]
        here = local.get_state(optimizer=True, anchor=True)
        scores = self.request_scores(rollouts.groups, experts, this_round)
        local.load_state(here)  # in one process the experts were seated on the same resident model
        combined = [
            self.compute_advantages(group, matrix) for group, matrix in zip(rollouts.groups, scores, strict=True)
        ]
        learnable = [
            (group, given) for group, given in zip(rollouts.groups, combined, strict=True) if given is not None
        ]
        report = local.update([group for group, _ in learnable], advantages=[given.tolist() for _, given in learnable])
        after = local.get_state(optimizer=True)
        skipped = {"questions/skipped": float(len(rollouts.groups) - len(learnable))}
        return RoundResult(
            ServerState(after.weights, after.optimizer, {**state.memory, "step": after.step}),
            metrics=rollouts.compute_metrics() | report.metrics | skipped | score_metrics(scores),
            clients=expert_metrics(experts, scores),
            episodes=[
                to_plain(group[0], segments=False) for group in rollouts.groups[: self.runtime.spec.sampled_episodes]
            ],
        )

    def start_server(self, state: ServerState) -> LocalTraining:
        """The server's own policy and optimizer on the resident model."""
        site = self.runtime.make_site(SERVER_ID, self.questions)
        return self.start_from(site, make_site_state(state), run_steps=self.runtime.rounds)

    def select_experts(self, question: str, state: ServerState, this_round: Round) -> list[int]:
        """The clients that score a question."""
        matrix = state.memory["right"]
        right = {
            client: row == 1
            for client, row in zip(this_round.clients.ids, matrix, strict=True)
            if (row != NOT_ANSWERED).all()
        }
        draw = stream(this_round.seed, "experts", this_round.number, question)
        count = min(self.settings.experts, len(right))
        if self.settings.selection == "random":
            return choose_experts(dict.fromkeys(right, 0.0), count, draw)
        near = find_nearest(self._embed_questions([question]), self._example_embeddings, self.settings.neighbours)[0]
        return choose_experts(compute_competence(right, near), count, draw)

    def request_scores(
        self, groups: Sequence[Group], experts: Sequence[Sequence[int]], this_round: Round
    ) -> list[NDArray[np.float64]]:
        """The matrix of scores of each question, NaN where an expert gave none. What answers something else is refused whole."""
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
        answers = successful_replies(this_round.clients.call("score", messages)) if messages else {}
        told = {client: np.asarray(answer.scores["scores"], dtype=np.float64) for client, answer in answers.items()}
        refused = {client: odd for client, rows in told.items() if (odd := find_score_error(rows, len(places[client])))}
        this_round.clients.refuse([Failure(client, "refused", odd) for client, odd in refused.items()])
        for client in told.keys() - refused.keys():
            for (index, row), scores in zip(places[client], told[client], strict=True):
                matrices[index][row] = scores
        return matrices

    def _make_question(self, group: Group, row: int) -> dict[str, Any]:
        """What one expert is told of one question: the task without its gold, and the candidates that it has to judge."""
        size = self.learning.group_size
        own = group[row * size : (row + 1) * size] if self.settings.aggregate == "split" else group
        segments = self.settings.scorer == "reward_model"
        (record,) = make_task_records(self.questions, [group[0].task])
        return {"task": record, "candidates": [make_candidate(trajectory, segments) for trajectory in own]}

    def compute_advantages(self, group: Group, scores: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """r = answer_weight * score + format_weight * format, made into one advantage per candidate."""
        form = np.array([format_reward(group, index, self.questions) for index in range(len(group))])
        laid = form.reshape(scores.shape) if self.settings.aggregate == "split" else form[None, :]
        return ESTIMATORS[self.settings.aggregate](
            self.settings.answer_weight * scores + self.settings.format_weight * laid
        )

    @cached_property
    def _example_embeddings(self) -> NDArray[np.float64]:
        return self._embed_questions(self.auxiliary.pool.ids, self.auxiliary)

    def _embed_questions(self, ids: Sequence[str], env: TextEnv | None = None) -> NDArray[np.float64]:
        """Questions as the frozen base model sees them."""
        from fedagentgym.learning.embedding import embed

        asked = env or self.questions
        openings = asked.reset_many(list(ids), [0] * len(ids))
        policy = get_trainable_policy(self.runtime.agent)
        present = policy.get_weights()
        policy.set_weights(self.runtime.initial_weights)
        try:
            return embed(policy, [episode.view.observation for episode in openings])
        finally:
            policy.set_weights(present)

    def _check_settings(self) -> None:
        """What can only be said once the federation is known."""
        clients = len(self.runtime.client_split)
        if self.settings.experts > clients:
            raise OptionError(
                f"algorithm.experts asks for {self.settings.experts} experts, there are {clients} clients"
            )
        if self.settings.scorer == "self_answer" and self.questions.takes == "command":
            raise OptionError(
                f"{self.questions.id} has no single answers to compare: use algorithm.scorer=reward_model for worlds of commands"
            )

    # ---- client ---------------------------------------------------------------------------------------------------

    def train_expert(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Train a model of one's own, and say which of the auxiliary questions it answers rightly."""
        site = client.resources
        scorer = Scorer(self.runtime, site, self._get_expert_weights(state))
        metrics: dict[str, float] = {}
        weights: Mapping[str, Any] = {}
        if steps := int(message.control["steps"]):
            metrics, weights = scorer.train(steps, client.derive("expert"))
        right = scorer.solve_tasks(message.text["auxiliary"], client.derive("auxiliary"))
        kept = Message(weights=add_prefix(EXPERT_PREFIX, weights)) if weights else state
        return kept, Message(scores={"right": pack_bits(right)}, report={"metrics": metrics})

    def score(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """One number for each candidate of each question."""
        scorer = Scorer(self.runtime, client.resources, self._get_expert_weights(state))
        kind, answers = self.settings.scorer, self.settings.answers
        questions, seed = message.text["questions"], client.derive("answer")
        if kind == "self_answer":
            scorer.answer_questions(questions, answers, seed)
        rows = [scorer.score_candidates(question, kind, answers, seed) for question in questions]
        return state, Message(scores={"scores": np.array(rows, dtype=np.float32)})

    def _get_expert_weights(self, state: Message) -> Mapping[str, NDArray[Any]]:
        """The client's expert; the base model while it has none."""
        return copy_arrays(strip_prefix(EXPERT_PREFIX, state.weights)) or self.runtime.initial_weights


def make_candidate(trajectory: Any, segments: bool) -> dict[str, Any]:
    """What an expert needs of a candidate: its actions; for `reward_model` also its tokens."""
    plain = to_plain(trajectory, segments=True) if segments else {}
    return {"actions": list(trajectory.actions), "seed": trajectory.seed, **({"trajectory": plain} if segments else {})}


def find_score_error(rows: NDArray[np.float64], questions: int) -> str:
    """Why an expert's scores cannot be used, or nothing. NaN is a hole and no fault."""
    if len(rows) != questions:
        return f"scored {len(rows)} of {questions} questions: nobody knows which"
    given = rows[~np.isnan(rows)]
    if not ((given >= 0.0) & (given <= 1.0)).all():
        return f"scores are numbers between 0 and 1 or NaN, got {given[(given < 0.0) | (given > 1.0)][0]:g}"
    return ""


def score_metrics(scores: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    """The share of holes among all scores that were wanted, and the mean of those that came."""
    everything = np.concatenate([matrix.reshape(-1) for matrix in scores]) if scores else np.zeros(0)
    means = [float(np.nanmean(matrix)) for matrix in scores if np.isfinite(matrix).any()]
    return {
        "scores/missing": float(np.isnan(everything).mean()) if len(everything) else 0.0,
        "scores/mean": float(np.mean(means)) if means else 0.0,
    }


def expert_metrics(
    experts: Sequence[Sequence[int]], scores: Sequence[NDArray[np.float64]]
) -> dict[int, dict[str, float]]:
    """For each client that was asked: how many questions, the share of its scores that did not come, the mean of the others."""
    rows: dict[int, list[NDArray[np.float64]]] = {}
    for chosen, matrix in zip(experts, scores, strict=True):
        for client, row in zip(chosen, matrix, strict=False):
            rows.setdefault(client, []).append(row)
    return {
        client: {"questions": float(len(given)), **score_metrics([np.stack(given)])}
        for client, given in sorted(rows.items())
    }


def format_reward(group: Group, index: int, env: TextEnv) -> float:
    """1 if the reply kept to its format: what the env pays for it, or the agents room's judgement of action tags."""
    if "format" in env.reward_names:
        return float(objective_values(group, "format")[index].max(initial=0.0))
    return float(all(turn.format for turn in group[index].turns))
