"""DPSDA-FL: clients turn their private tasks into differentially private synthetic ones, and the server trains on those.

Private evolution, once, before round 1:

    server   draws candidates from the world's public generator (another seed than anybody's tasks), with their answers
    for t = 1..T:
    client     embeds its private tasks and the candidates (frozen base model); each task votes for the nearest candidate
    client     adds Gaussian noise to its histogram of votes, returns it                  ((epsilon, delta) over all T)
    server     keeps the candidates with most votes, and draws variations: fresh candidates of the same categories
    server   the survivors are its training set

Then the server trains alone, by reinforcement (`objective: grpo`) or by imitation (`sft`); nothing travels any more. Labels never
come from clients: the generator knows the answers of what it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.algorithms.base import CONTROL_BYTES, BaseAlgorithm
from fedagentgym.algorithms.fedpetuning import imitate_solutions
from fedagentgym.algorithms.support.private_votes import (
    add_noise,
    compute_epsilon,
    compute_noise_deviation,
    count_votes,
)
from fedagentgym.algorithms.support.runtime import Site
from fedagentgym.algorithms.support.state_arrays import copy_arrays, make_site_state
from fedagentgym.algorithms.support.work import Scale, Work
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import Stream, derive
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.federation.algorithm import Round, RoundResult
from fedagentgym.federation.message import ArrayForm, Form, Message
from fedagentgym.federation.operation import ClientContext, Operation
from fedagentgym.federation.server_state import ServerState
from fedagentgym.learning.local import get_trainable_policy
from fedagentgym.learning.settings import ImitationSettings

TEXT_BYTES = 4096


class DPSDASettings(Settings):
    """`algorithm: {name: dpsda-fl, epsilon: 8, delta: 1.0e-5, ...}`."""

    name: Literal["dpsda-fl"] = "dpsda-fl"
    synthetic_tasks: int = Field(default=200, ge=1, description="synthetic tasks that the server trains on")
    candidates: int = Field(default=400, ge=2, description="candidates in each iteration of the evolution")
    iterations: int = Field(default=3, ge=1, description="iterations of voting (T)")
    epsilon: float = Field(default=8.0, gt=0.0, description="privacy budget of each private task, over all iterations")
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0, description="the budget's delta")
    objective: Literal["grpo", "sft"] = Field(default="grpo", description="reinforcement or imitation")
    local_steps: int = Field(default=3, ge=1, description="the server's steps in a round")
    supervised: ImitationSettings = Field(default=ImitationSettings(), description="how solutions are imitated (sft)")

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.synthetic_tasks > self.candidates:
            raise ValueError(f"synthetic_tasks ({self.synthetic_tasks}) cannot exceed candidates ({self.candidates})")
        if self.objective == "grpo" and self.supervised != ImitationSettings():
            raise ValueError("supervised says how solutions are imitated: it needs objective=sft")
        return self


class DPSDA(BaseAlgorithm[DPSDASettings]):
    """Server side and client operation of DPSDA-FL; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = DPSDASettings

    @classmethod
    def estimate_preparation(cls, settings: DPSDASettings, scale: Scale) -> Work | None:
        """In every iteration every client is sent the candidates and votes."""
        votes = settings.candidates * settings.iterations
        return Work(answers_down=votes, scores_up=votes) * scale.clients

    @classmethod
    def estimate_round(cls, settings: DPSDASettings, scale: Scale) -> Work | None:
        """The server trains alone."""
        if settings.objective == "sft":
            return Work(optimizer_steps=settings.local_steps)
        return scale.count_local_work(settings.local_steps)

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        votes = ArrayForm("float32", (self.settings.candidates,))
        asked = Form(text=CONTROL_BYTES + self.settings.candidates * TEXT_BYTES)
        return {"vote": Operation(self.vote, asked, Form({"scores/votes": votes}))}

    def initial_state(self) -> ServerState:
        return ServerState(self.runtime.initial_weights, memory={"step": 0})

    @property
    def deviation(self) -> float:
        """The noise on every count of every client's histogram."""
        return compute_noise_deviation(self.settings.epsilon, self.settings.delta, self.settings.iterations)

    # ---- server ---------------------------------------------------------------------------------------------------

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """Private evolution."""
        pool = self.generator.pool
        drawn = self._iter_candidates(this_round.stream("candidates"))
        chosen = [next(drawn) for _ in range(self.settings.candidates)]
        totals = np.zeros(0)
        for iteration in range(self.settings.iterations):
            if iteration:
                chosen = self._vary_candidates(chosen, totals, drawn)
            texts = [self._read_observation(index) for index in chosen]
            message = Message(text={"candidates": texts}, control={"iteration": iteration})
            totals = np.zeros(len(chosen))
            for reply in this_round.clients.call("vote", dict.fromkeys(this_round.clients.ids, message)).values():
                if isinstance(reply, Message):
                    totals += reply.scores["votes"].astype(np.float64)
        survivors = _select_best(totals, self.settings.synthetic_tasks)
        ids = [pool.ids[chosen[index]] for index in survivors]
        metrics = {
            "privacy/epsilon": compute_epsilon(self.deviation, self.settings.delta, self.settings.iterations),
            "privacy/delta": self.settings.delta,
            "privacy/noise": self.deviation,
            "synthetic/tasks": float(len(ids)),
        }
        return RoundResult(replace(state, memory={**state.memory, "synthetic": ids}), metrics=metrics)

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """The server's own steps on the survivors."""
        ids = [str(identifier) for identifier in state.memory["synthetic"]]
        site = self.runtime.make_site(-1, self._open_generator(tasks=ids))
        if self.settings.objective == "sft":
            losses, weights = imitate_solutions(
                site,
                copy_arrays(state.parameters),
                self.settings.supervised,
                self.settings.local_steps,
                this_round.derive("sft"),
            )
            return RoundResult(replace(state, parameters=weights), metrics={"loss": losses[-1]})
        run_steps = self.runtime.rounds * self.settings.local_steps
        local = self.start_from(site, make_site_state(state), run_steps=run_steps)
        report = local.run(self.settings.local_steps, seed=this_round.derive("train"))
        after = local.get_state(optimizer=True)
        kept = ServerState(after.weights, after.optimizer, {**state.memory, "step": after.step})
        return RoundResult(kept, metrics=report.metrics)

    @cached_property
    def generator(self) -> TextEnv:
        """The public generator: the same world, made from a seed that nobody's tasks come from."""
        return self._open_generator()

    def _open_generator(self, **options: Any) -> TextEnv:
        given, env_id = self.runtime.spec.env.options, self.runtime.spec.env.id
        if {"data", "source", "games"} & set(given):
            raise OptionError(f"dpsda-fl needs tasks from a generator: {env_id} is told to take loaded ones")
        seed = derive(self.runtime.seed, "public generator") % (1 << 31)
        options = {**given, "split": "train", "seed": seed, **options}
        return open_env(env_id, **options)

    def _iter_candidates(self, draw: Stream) -> Any:
        """Numbers of generated tasks in random order, without questions that are asked in an evaluation."""
        env = self.generator
        splits = env.evaluation_splits if env.takes == "reply" else ()
        judged = {text for split in splits for text in read_observations(self.runtime.open_env(split=split))}
        for index in draw.permutation(len(env.pool)).tolist():
            if self._read_observation(index) not in judged:
                yield index
        raise DataError(
            f"the public generator has too few tasks for {self.settings.iterations} iterations of"
            f" {self.settings.candidates} candidates"
        )

    def _vary_candidates(self, chosen: list[int], votes: NDArray[np.float64], drawn: Any) -> list[int]:
        """The better half, and for each of them a fresh candidate of its category."""
        codes = self.generator.pool.category_codes
        kept = [chosen[index] for index in _select_best(votes, (len(chosen) + 1) // 2)]
        wanted: dict[int, int] = {}
        for index in kept[: len(chosen) - len(kept)]:
            wanted[int(codes[index])] = wanted.get(int(codes[index]), 0) + 1
        fresh: list[int] = []
        while any(wanted.values()):
            index = next(drawn)
            code = int(codes[index])
            if wanted.get(code):
                wanted[code] -= 1
                fresh.append(index)
        return [*kept, *fresh]

    def _read_observation(self, index: int) -> str:
        (episode,) = self.generator.reset_many([self.generator.pool[index]], [0])
        return episode.view.observation

    # ---- client ---------------------------------------------------------------------------------------------------

    def vote(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """The noisy histogram of which candidates are nearest to the client's own tasks."""
        from fedagentgym.learning.embedding import embed

        site = client.resources
        policy = get_trainable_policy(site.agent)
        policy.set_weights(self.runtime.initial_weights)
        candidates = [str(text) for text in message.text["candidates"]]
        private = read_observations(site.env)
        votes = count_votes(embed(policy, private), embed(policy, candidates))
        shown = add_noise(votes, self.deviation, client.stream("noise", int(message.control["iteration"])))
        return state, Message(scores={"votes": shown.astype(np.float32)})


def read_observations(env: TextEnv) -> list[str]:
    """What each task of a pool says at its start."""
    pool: TaskPool = env.pool
    return [episode.view.observation for episode in env.reset_many(list(pool), [0] * len(pool))]


def _select_best(votes: NDArray[np.float64], count: int) -> list[int]:
    """Numbers of the greatest counts, in rising order; the lower number first among equals."""
    return sorted(np.argsort(-votes, kind="stable")[:count].tolist())
