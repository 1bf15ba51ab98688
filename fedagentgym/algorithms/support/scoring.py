"""What a FedGRPO client does with a question: check candidates against its gold, or judge them by a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.algorithms.support.runtime import Runtime, Site
from fedagentgym.algorithms.support.task_transfer import received_pool
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.task import Task
from fedagentgym.learning.local import SiteState
from fedagentgym.learning.rollouts import collect
from fedagentgym.learning.trajectory import Trajectory, from_plain

Arrays = Mapping[str, NDArray[Any]]


class Scorer:
    """One client with its own model seated on the resident one."""

    def __init__(self, runtime: Runtime, site: Site, weights: Arrays) -> None:
        self._runtime, self._site = runtime, site
        self._local = runtime.training(site, SiteState(weights))
        self._believed: dict[str, Task | None] = {}

    def trained(self, steps: int, seed: int) -> tuple[dict[str, float], Arrays]:
        """Policy steps on the client's own tasks; the weights that come of it stay here."""
        report = self._local.run(steps, seed=seed)
        return report.metrics, self._local.state(optimizer=False).weights

    def answered_rightly(self, records: Sequence[Mapping[str, Any]], seed: int) -> list[bool]:
        """Whether the client's model gets each of these tasks right."""
        env = self._open_env(records)
        rollouts = collect(self._site.agent, env, list(env.pool.ids), seed=seed)
        return [group[0].success for group in rollouts.groups]

    def believe(self, questions: Sequence[Mapping[str, Any]], answers: bool, seed: int) -> None:
        """Let the client's model answer all questions that it will have to judge, side by side and each of them once."""
        records = {str(question["task"]["id"]): question["task"] for question in questions}
        asked = [record for identifier, record in records.items() if not (answers and self._holds(identifier))]
        if not asked:
            return
        env = self._open_env(asked)
        played = collect(self._site.agent, env, list(env.pool.ids), seed=seed).groups
        for task, (own,) in zip(env.pool, played, strict=True):
            self._believed[task.id] = env.with_belief(task, own.turns[-1].reply if own.turns else "")

    def scores(self, question: Mapping[str, Any], scorer: str, answers: bool, seed: int) -> list[float]:
        """One number in 0..1 per candidate, NaN for none: AE if the client holds the question, else ME."""
        identifier = str(question["task"]["id"])
        candidates = question["candidates"]
        if answers and self._holds(identifier):
            held = self._runtime.client_split.pool[identifier]
            return [replayed(self._runtime.env, held, candidate) for candidate in candidates]
        if scorer == "reward_model":
            received_pool([question["task"]], self._runtime.env)  # a task that does not exist is an error, not a score
            return [self._likelihood(from_plain(candidate["trajectory"])) for candidate in candidates]
        return self._agreements(question, candidates, seed)

    def _holds(self, identifier: str) -> bool:
        return identifier in self._site.env.pool

    def _agreements(self, question: Mapping[str, Any], candidates: Sequence[Any], seed: int) -> list[float]:
        """1 where a candidate gives the answer that the client's model gives; 0 for all if it gives none."""
        identifier = str(question["task"]["id"])
        if identifier not in self._believed:
            self.believe([question], False, seed)
        believed = self._believed[identifier]
        if believed is None:
            return [0.0] * len(candidates)
        return [replayed(self._runtime.env, believed, candidate) for candidate in candidates]

    def _likelihood(self, trajectory: Trajectory) -> float:
        """How likely the candidate is to the client's model: the geometric mean of its tokens' probabilities."""
        ((scored,),) = self._local.rescored([(trajectory,)])
        own = [segment.logprobs[segment.mask].astype(np.float64) for segment in scored.segments]
        said = np.concatenate(own) if own else np.zeros(0)
        return float(np.exp(said.mean())) if len(said) else float("nan")

    def _open_env(self, records: Sequence[Mapping[str, Any]]) -> TextEnv:
        return self._runtime.open_env(pool=received_pool(records, self._runtime.env))


def replayed(env: TextEnv, task: Task, candidate: Mapping[str, Any]) -> float:
    """The score that a candidate's actions earn in the unperturbed world."""
    (episode,) = env.reset_many([task], [int(candidate["seed"])])
    for action in candidate["actions"]:
        if episode.over:
            break
        (episode,) = env.step_many([episode], [str(action)])
    return float(episode.view.score)
