"""How a FedGRPO client scores a question's candidates: by checking against its gold, or with a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fedagentgym.algorithms.support.runtime import Runtime, Site, Weights
from fedagentgym.algorithms.support.transfer import pool_from_records, reread
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.task import Task
from fedagentgym.learning.local import LocalTraining, SiteState
from fedagentgym.learning.rollouts import Rollouts, collect
from fedagentgym.learning.trajectory import Trajectory, from_plain

Answers = Literal["off", "own", "holders_first", "all"]
"""Who may check candidates against the gold: nobody, holders of the question (preferred or not), or everybody."""
Judgement = Literal["self_answer", "reward_model"]


class Scorer:
    """One client with its own model, which is loaded when first needed."""

    def __init__(
        self,
        runtime: Runtime,
        site: Site,
        weights: Weights,
        *,
        answers: Answers = "own",
        judgement: Judgement = "self_answer",
    ) -> None:
        self._runtime, self._site, self._weights = runtime, site, weights
        self._answers, self._judgement = answers, judgement
        self._believed: dict[str, Task | None] = {}

    @cached_property
    def _local(self) -> LocalTraining:
        return self._site.open_learner(SiteState(self._weights))

    def train(self, steps: int, seed: int) -> tuple[dict[str, float], Weights]:
        """Policy steps on the client's own tasks; the resulting weights stay with the client."""
        report = self._local.run(steps, seed=seed)
        return report.metrics, self._local.get_state(optimizer=False).weights

    def solve_tasks(self, records: Sequence[Mapping[str, Any]], seed: int) -> list[bool]:
        """Whether the client's model solves each of these tasks."""
        return [group[0].success for group in self._play(self._open_env(records), seed).groups]

    def score_questions(self, questions: Sequence[Mapping[str, Any]], seed: int) -> list[list[float]]:
        """One row for each question: a number in 0..1 per candidate, NaN for none. AE if the gold may be used, else ME."""
        judged = [question for question in questions if not self.may_check(_get_id(question))]
        if self._judgement == "self_answer":
            self.answer_questions(judged, seed)
        return [self.score_candidates(question) for question in questions]

    def answer_questions(self, questions: Sequence[Mapping[str, Any]], seed: int) -> None:
        """Let the client's model answer the questions, in one batch and each of them once."""
        records = {_get_id(question): question["task"] for question in questions}
        if not records:
            return
        env = self._open_env(list(records.values()))
        for task, (own,) in zip(env.pool, self._play(env, seed).groups, strict=True):
            self._believed[task.id] = env.with_belief(task, own.turns[-1].reply if own.turns else "")

    def may_check(self, identifier: str) -> bool:
        """Whether this client checks a question's candidates against the gold."""
        if self._answers in ("off", "all"):
            return self._answers == "all"
        return identifier in self._site.env.pool

    def score_candidates(self, question: Mapping[str, Any]) -> list[float]:
        """The scores of one question's candidates; `self_answer` must have answered it before."""
        identifier, candidates = _get_id(question), question["candidates"]
        if self.may_check(identifier):
            gold = self._runtime.client_split.pool[identifier]
            return [score_by_replay(self._runtime.env, gold, candidate) for candidate in candidates]
        if self._judgement == "reward_model":
            (task,) = pool_from_records([question["task"]], self._runtime.env)  # an unknown task is an error
            return [self._score_by_likelihood(task, candidate) for candidate in candidates]
        believed = self._believed[identifier]
        if believed is None:
            return [0.0] * len(candidates)
        return [score_by_replay(self._runtime.env, believed, candidate) for candidate in candidates]

    def _score_by_likelihood(self, task: Task, candidate: Mapping[str, Any]) -> float:
        """The likelihood of the candidate under the client's model: the geometric mean of its tokens' probabilities."""
        trajectory = self._read_candidate(task, candidate)
        if trajectory is None:
            return float("nan")
        ((scored,),) = self._local.recompute_logprobs([(trajectory,)])
        own = [segment.logprobs[segment.mask].astype(np.float64) for segment in scored.segments]
        said = np.concatenate(own) if own else np.zeros(0)
        return float(np.exp(said.mean())) if len(said) else float("nan")

    def _read_candidate(self, task: Task, candidate: Mapping[str, Any]) -> Trajectory | None:
        """The candidate in tokens: the server's, or those of the client's own model."""
        if "trajectory" in candidate:
            return from_plain(candidate["trajectory"])
        return reread(self._site.agent, self._runtime.env, task, candidate)

    def _play(self, env: TextEnv, seed: int) -> Rollouts:
        """One episode of each task of an environment."""
        return collect(self._local.agent, env, list(env.pool.ids), seed=seed)

    def _open_env(self, records: Sequence[Mapping[str, Any]]) -> TextEnv:
        return self._runtime.open_env(pool=pool_from_records(records, self._runtime.env))


def _get_id(question: Mapping[str, Any]) -> str:
    return str(question["task"]["id"])


def score_by_replay(env: TextEnv, task: Task, candidate: Mapping[str, Any]) -> float:
    """The score of a candidate's actions in the unchanged environment."""
    (episode,) = env.reset_many([task], [int(candidate["seed"])])
    for action in candidate["actions"]:
        if episode.over:
            break
        (episode,) = env.step_many([episode], [str(action)])
    return float(episode.view.score)
