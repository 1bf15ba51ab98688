"""DPSDA-FL: clients turn their private tasks into differentially private synthetic ones, and the server trains on those.

Private evolution, once, before round 1:

    server   draws candidates, with their answers: from the environment's public generator (with a seed that no client's tasks
                use), or, if tasks are loaded, from the language model
    for t = 1..T:
    client     embeds its private tasks and the candidates (frozen base model); each task votes for the nearest candidate
    client     adds Gaussian noise to its histogram of votes, returns it                  ((epsilon, delta) over all T)
    server     keeps the candidates with most votes, and draws variations: fresh candidates of the same categories, or what the
               model writes when it is shown them
    server   the survivors are its training set

Then the server trains alone, by reinforcement learning (`objective: grpo`) or imitation (`sft`); clients are not called again.
Labels never come from clients: the generator knows the answers of what it makes, and the model answers what it writes.

The noise: each private example votes once per iteration, so adding or removing it changes one count by one: the histogram's
sensitivity is 1 in Euclidean norm. One release with noise of deviation sigma is (1 / (2 sigma^2))-zCDP; T releases add up; and
rho-zCDP is (rho + 2 sqrt(rho ln(1 / delta)), delta)-differentially private (Bun and Steinke 2016, proposition 1.3). Solved for
sigma:

    rho = (sqrt(ln(1 / delta) + epsilon) - sqrt(ln(1 / delta)))^2        sigma = sqrt(T / (2 rho))

Each client draws its noise from its operating system, so that no one else can subtract it, the server included. If the server is
killed before round 1, the repeated votes can have new noise and spend the budget again. With `secret: false` the noise
follows from the run's seed: the run is repeatable, gives no protection, and has no epsilon.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.algorithms.base import CONTROL_BYTES, BaseAlgorithm
from fedagentgym.algorithms.card import Card, Scale, Sent, Work, count_imitation
from fedagentgym.algorithms.experts import read_openings
from fedagentgym.algorithms.fedpetuning import imitate_solutions
from fedagentgym.algorithms.runtime import Runtime, Site, make_site_state
from fedagentgym.algorithms.synthetic_tasks import (
    ATTEMPTS,
    TEXT_BYTES,
    Candidate,
    CandidateSource,
    GeneratedTasks,
    WrittenTasks,
    is_generated,
)
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.base.streams import Stream, derive
from fedagentgym.envs import open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool
from fedagentgym.federation.algorithm import Failure, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import ArrayForm, AtMost, Form, Message
from fedagentgym.learning.settings import ImitationSettings
from fedagentgym.learning.state import get_trainable_policy


class DPSDASettings(Settings):
    """`algorithm: {name: dpsda-fl, epsilon: 8, delta: 1.0e-5, ...}`."""

    name: Literal["dpsda-fl"] = "dpsda-fl"
    synthetic_tasks: int = Field(default=200, ge=1, description="synthetic tasks that the server trains on")
    candidates: int = Field(default=400, ge=2, description="candidates in each iteration of the evolution")
    iterations: int = Field(default=3, ge=1, description="iterations of voting (T)")
    epsilon: float = Field(default=8.0, gt=0.0, description="privacy budget of each private task, over all iterations")
    delta: float = Field(default=1e-5, gt=0.0, lt=1.0, description="the budget's delta")
    secret: bool = Field(
        default=True,
        description="clients draw noise from their operating system; false: from the seed, repeatable, without an epsilon",
    )
    candidates_from: Literal["auto", "generator", "model"] = Field(
        default="auto",
        description="where candidates come from; auto: the environment's generator, or the language model for loaded tasks",
    )
    objective: Literal["grpo", "sft"] = Field(default="grpo", description="grpo: reinforcement; sft: imitation")
    local_steps: int = Field(default=3, ge=1, description="the server's steps in a round")
    supervised: ImitationSettings = Field(default=ImitationSettings(), description="how solutions are imitated (sft)")

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.synthetic_tasks > self.candidates:
            raise ValueError(f"synthetic_tasks ({self.synthetic_tasks}) cannot exceed candidates ({self.candidates})")
        if self.objective == "grpo" and self.supervised != ImitationSettings():
            raise ValueError("supervised is about imitation: it needs objective=sft")
        return self


class DPSDA(BaseAlgorithm[DPSDASettings]):
    """Server side and client operation of DPSDA-FL; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = DPSDASettings

    def __init__(self, settings: DPSDASettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        if runtime.learning.keep_optimizer:
            raise OptionError("dpsda-fl's server keeps its optimizer by itself: leave out learning.keep_optimizer")

    def check_start(self, asked: int) -> None:
        """Refuse tasks that no generator makes, and more candidates than the generator has.

        Args:
            asked: Number of clients that take part in a round.
        """
        super().check_start(asked)
        wanted = self.settings.candidates
        if not self.written and wanted > (held := len(self._open_generator().pool)):
            raise OptionError(
                f"algorithm.candidates asks for {wanted} candidates, the public generator has {held} tasks"
            )

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        most = self.settings.candidates
        votes = ArrayForm("float32", (AtMost(most) if self.written else most,))
        asked = Form(text=CONTROL_BYTES + self.settings.candidates * TEXT_BYTES)
        return {"vote": Operation(self.vote, asked, Form(scores={"votes": votes}))}

    def initial_state(self) -> ServerState:
        return ServerState(self.runtime.initial_weights, memory={"step": 0})

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on every count of every client's histogram."""
        return compute_noise_deviation(self.settings.epsilon, self.settings.delta, self.settings.iterations)

    # ---- server ---------------------------------------------------------------------------------------------------

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """Run the private evolution, and keep the surviving candidates as synthetic tasks."""
        source = self._open_source(this_round)
        chosen = self._check_enough(source.draw(self.settings.candidates))
        totals = np.zeros(0)
        for iteration in range(self.settings.iterations):
            if iteration:
                kept = [chosen[index] for index in _select_best(totals, (len(chosen) + 1) // 2)]
                fresh = source.vary(kept[: len(chosen) - len(kept)])
                chosen = self._check_enough([*kept, *fresh])
            texts = [candidate.text for candidate in chosen]
            message = Message(text={"candidates": texts}, control={"iteration": iteration})
            totals, refused = np.zeros(len(chosen)), []
            asked = dict.fromkeys(this_round.clients.ids, message)
            for client, reply in this_round.clients.iter_replies("vote", asked):
                votes = reply.scores["votes"].astype(np.float64)
                if len(votes) == len(chosen):
                    totals += votes
                else:
                    reason = f"{len(votes)} votes for {len(chosen)} candidates"
                    refused.append(Failure(client, "refused", reason))
            this_round.clients.refuse(refused)
        survivors = [chosen[index].kept for index in _select_best(totals, self.settings.synthetic_tasks)]
        metrics = {"privacy/noise": self.deviation, "synthetic/tasks": float(len(survivors))}
        if self.settings.secret:
            spent = compute_epsilon(self.deviation, self.settings.delta, self.settings.iterations)
            metrics |= {"privacy/epsilon": spent, "privacy/delta": self.settings.delta}
        if isinstance(source, WrittenTasks):
            metrics |= {"scored": float(source.replies), "synthetic/candidates": float(len(chosen))}
        return RoundResult(replace(state, memory={**state.memory, "synthetic": survivors}), metrics=metrics)

    def _check_enough(self, candidates: list[Candidate]) -> list[Candidate]:
        if len(candidates) < self.settings.synthetic_tasks:
            raise DataError(
                f"the language model wrote {len(candidates)} usable candidates, algorithm.synthetic_tasks needs"
                f" {self.settings.synthetic_tasks}: the other replies had another form than asked for, no answer that can be"
                " graded, or tasks that were known already"
            )
        return candidates

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """The server's own steps on the synthetic tasks."""
        site = self.runtime.get_site(-1, env=self.open_survivors(state.memory["synthetic"]))
        start, steps = make_site_state(state), self.settings.local_steps
        run_steps = self.runtime.rounds * steps
        if self.settings.objective == "sft":
            supervised, seed = self.settings.supervised, this_round.derive("sft")
            losses, after = imitate_solutions(site, start, supervised, steps, seed, run_steps=run_steps)
            metrics = {"loss": losses[-1], "optimizer_steps": float(steps)}
        else:
            local = site.open_learner(start, run_steps=run_steps)
            metrics = local.run(steps, seed=this_round.derive("train")).metrics
            after = local.get_state(optimizer=True)
        kept = ServerState(after.weights, after.optimizer, {**state.memory, "step": after.step})
        return RoundResult(kept, metrics=metrics)

    @property
    def written(self) -> bool:
        """True if the language model writes the candidates."""
        generated = is_generated(self.runtime.client_split.pool.source)
        if self.settings.candidates_from == "generator" and not generated:
            raise OptionError(
                f"dpsda-fl needs tasks from a generator: {self.runtime.spec.env.id} loads its tasks"
                " (algorithm.candidates_from=model lets the language model write them)"
            )
        return self.settings.candidates_from == "model" or not generated

    def _open_source(self, this_round: Round) -> CandidateSource:
        """The source of candidates, excluding questions that an evaluation uses."""
        if self.written:
            return WrittenTasks(
                self.runtime, self._collect_observations(self.runtime.env), this_round.derive("written")
            )
        env = self._open_generator()
        lacking = (
            f"the public generator has too few tasks for {self.settings.iterations} iterations of"
            f" {self.settings.candidates} candidates"
        )
        return GeneratedTasks(env, self._collect_observations(env), this_round.stream("candidates"), lacking)

    def open_survivors(self, kept: Sequence[Any]) -> TextEnv:
        """The environment over the synthetic tasks; `kept` has ids of the generator's tasks, or records of written tasks."""
        if not self.written:
            return self._open_generator(tasks=[str(identifier) for identifier in kept])
        return self.runtime.open_env(pool=TaskPool.from_records(kept, env=self.runtime.spec.env.id))

    def _open_generator(self, **options: Any) -> TextEnv:
        """The same environment with a seed that no client's tasks use."""
        given, env_id = self.runtime.spec.env.options, self.runtime.spec.env.id
        seed = derive(self.runtime.seed, "public generator") % (1 << 31)
        options = {**given, "split": "train", "seed": seed, **options}
        return open_env(env_id, **options)

    def _collect_observations(self, env: TextEnv) -> frozenset[str]:
        """The questions of the evaluation splits; loaded data may lack some of these splits."""
        observations: set[str] = set()
        for split in env.evaluation_splits if env.takes == "reply" else ():
            try:
                opened = self.runtime.open_env(split=split)
                observations.update(read_openings(opened, opened.pool.ids))
            except DataError:
                continue
        return frozenset(observations)

    # ---- client ---------------------------------------------------------------------------------------------------

    def vote(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Count for each candidate how many of the client's own tasks are nearest to it, and add noise to the counts."""
        from fedagentgym.learning.forward import embed

        site = client.resources
        policy = get_trainable_policy(site.model.load(self.runtime.initial_weights))
        candidates = [str(text) for text in message.text["candidates"]]
        private = read_openings(site.env, site.env.pool.ids)
        votes = count_votes(embed(policy, private), embed(policy, candidates))
        if self.settings.secret:
            draw = Stream(secrets.randbits(128))
        else:
            draw = client.stream("noise", int(message.control["iteration"]))
        shown = add_noise(votes, self.deviation, draw)
        return state, Message(scores={"votes": shown.astype(np.float32)})

    @classmethod
    def describe(cls, settings: DPSDASettings, scale: Scale) -> Card:
        """Return the card: every client votes on the candidates of every iteration, then the server trains alone.

        Unless candidates are known to come from a generator, the card counts replies of the model, several for each candidate.
        No answers of clients' tasks are used: clients compare only texts, and synthetic tasks come with answers.
        """
        votes, fresh = settings.candidates * settings.iterations, settings.candidates // 2 * (settings.iterations - 1)
        drawn = settings.candidates_from == "generator" or (settings.candidates_from == "auto" and scale.generated)
        written = 0 if drawn else ATTEMPTS * (settings.candidates + fresh)
        trained = scale.count_local_work(settings.local_steps)
        imitated = count_imitation(settings.local_steps, settings.supervised.batch_size)
        return replace(
            super().describe(settings, scale),
            preparation=Work(answers_down=votes, scores_up=votes) * scale.clients + Work(scored=written),
            round=imitated if settings.objective == "sft" else trained,
            optional_roles=() if settings.candidates_from == "generator" else ("public",),
            labelled=(),
            value_refusal="with objective=sft it imitates" if settings.objective == "sft" else "",
            sent=(Sent("votes", "how many of its tasks are nearest to each public candidate, with noise"),),
            assumed=(
                "one task of one client is added or left out",
                "the votes were collected once: a run that was killed before round 1 spent as much again",
            ),
        )


def _select_best(votes: NDArray[np.float64], count: int) -> list[int]:
    """Indices of the largest counts, ascending; the lower index first among equals."""
    return sorted(np.argsort(-votes, kind="stable")[:count].tolist())


Floats = NDArray[np.float64]


def compute_noise_deviation(epsilon: float, delta: float, iterations: int) -> float:
    """sigma for this many releases under a total budget of (epsilon, delta)."""
    if not epsilon > 0 or not 0 < delta < 1 or iterations < 1:
        raise OptionError(
            f"epsilon > 0, 0 < delta < 1 and iterations >= 1 are needed, got {epsilon}, {delta}, {iterations}"
        )
    log = math.log(1 / delta)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2  # zCDP that (epsilon, delta) allows
    return math.sqrt(iterations / (2 * rho))


def compute_epsilon(deviation: float, delta: float, iterations: int) -> float:
    """The epsilon of this many releases with this noise."""
    rho = iterations / (2 * deviation**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def count_votes(private: Floats, candidates: Floats) -> NDArray[np.int64]:
    """Return how many private examples are nearest to each candidate, by cosine; the lower index first among equals."""
    winners = np.argmax(private @ candidates.T, axis=1) if len(private) else np.zeros(0, dtype=np.int64)
    return np.bincount(winners, minlength=len(candidates)).astype(np.int64)


def add_noise(votes: NDArray[np.int64], deviation: float, draw: Stream) -> Floats:
    """The histogram with noise, which may be published."""
    return votes + draw.normal(0.0, deviation, size=len(votes))
