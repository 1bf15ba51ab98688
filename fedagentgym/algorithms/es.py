"""Evolution strategies: clients score perturbed policies, and nothing but scores is sent (Qiu et al. 2025, arXiv:2509.24372).

    server   send to every k in S the rows (round, client, weight, scores) that k has not seen yet
    client   theta = theta + rate * weight / N * sum of z_j e_j, row by row, as the server did
    client   draw tasks;  s_j = mean reward of playing them with theta + sigma * e_j, for j = 1..N
    client   keep theta; return s_1..s_N
    server   a row for every k in S, with weights that add up to 1;  theta = theta + ... as above

e_j is drawn from the run's seed, the row's round and client, and j. A site that has the row can draw the same noise, so that
no parameters are sent. z are the scores of a row, standardised or centred. With `antithetic` every second perturbation is the
negative of the one before. All perturbations of a client play the same tasks with the same draws. Clients need only inference.

Server and clients apply rows by the same operations in the same order, and round after each row, so that they have the same bits.
A client checks this by the digest of theta that the server sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.algorithms.base import CONTROL_BYTES, BaseAlgorithm
from fedagentgym.algorithms.card import METRICS, Card, Scale, Sent, Work
from fedagentgym.algorithms.reports import MAX_COUNTED, Report, read_report
from fedagentgym.algorithms.runtime import Runtime, Site, copy_arrays
from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.settings import NamedSettings, Settings
from fedagentgym.base.statistics import mean
from fedagentgym.base.streams import generator
from fedagentgym.federation.algorithm import Failure, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import (
    Array,
    ArrayForm,
    AtMost,
    Form,
    Message,
    Parameters,
    freeze,
    update_norm,
)
from fedagentgym.learning.advantages import compute_training_rewards
from fedagentgym.learning.draws import draw_places
from fedagentgym.learning.state import mean_metrics

POLICY = "policy"
"""The set of a client's state that holds its copy of the policy."""
APPLIED = "applied"
"""The number of rows that a copy of the policy has applied: in a client's state, and by client in the server's memory."""
MAX_ROWS = 1 << 20
ROW_NUMBERS = 6
"""Size of a row without its scores, counted in scores of four bytes: a round, a client and a weight have eight bytes each."""


class ESSettings(NamedSettings):
    """`algorithm: {name: es, population: 16}`."""

    name: Literal["es"] = "es"
    population: int = Field(default=30, ge=2, description="perturbed policies that a client scores in a round (N)")
    sigma: float = Field(default=0.001, gt=0, description="standard deviation of the perturbations")
    rate: float = Field(
        default=0.0005, ge=0, description="step along the mean of the perturbations times their scores (alpha)"
    )
    scores: Literal["standardised", "centred"] = Field(
        default="standardised",
        description="a client's scores less their mean (centred), and divided by their standard deviation (standardised)",
    )
    antithetic: bool = Field(default=False, description="every perturbation is also tried with the opposite sign")
    weights: Literal["equal", "tasks"] = Field(
        default="equal", description="equal: clients count alike; tasks: by their numbers of tasks"
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.antithetic and self.population % 2:
            raise ValueError(f"antithetic perturbations come in pairs: population is even, got {self.population}")
        return self


class Rows(NamedTuple):
    """The history of scores, which with the initial policy and the seed determines the policy.

    Each row has a round, a client, its weight and its scores.
    """

    round: NDArray[np.int64]
    client: NDArray[np.int64]
    weight: NDArray[np.float64]
    score: NDArray[np.float32]

    @classmethod
    def read(cls, arrays: Mapping[str, Array]) -> Rows:
        return cls(*(arrays[name] for name in cls._fields))

    @classmethod
    def make_forms(cls, population: int) -> dict[str, ArrayForm]:
        """The forms of the arrays, with any number of rows."""
        most = AtMost(MAX_ROWS)
        plain = {"round": "int64", "client": "int64", "weight": "float64"}
        forms = {name: ArrayForm(dtype, (most,)) for name, dtype in plain.items()}
        return {**forms, "score": ArrayForm("float32", (most, population))}

    def skip(self, count: int) -> Rows:
        """The rows after the first `count` rows."""
        return Rows.read({name: part[count:] for name, part in self._asdict().items()})

    def add(self, other: Rows) -> Rows:
        """These rows, followed by the rows of `other`."""
        ours, theirs = self._asdict(), other._asdict()
        return Rows.read({name: np.concatenate([ours[name], theirs[name]]) for name in ours})


class EvolutionStrategies(BaseAlgorithm[ESSettings]):
    """Server side and client operation of federated evolution strategies; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = ESSettings

    def __init__(self, settings: ESSettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        if runtime.learning.keep_optimizer:
            raise OptionError("es has no optimizer: leave out learning.keep_optimizer")
        if runtime.learning.sharding is not None and runtime.learning.sharding.is_needed:
            raise OptionError(
                "es computes no gradients, so that there is nothing to shard: leave out learning.sharding"
            )

    def check_start(self, asked: int) -> None:
        """Refuse a run whose rows would be more than a message holds.

        Args:
            asked: Number of clients that take part in a round.
        """
        super().check_start(asked)
        if (rows := asked * self.runtime.rounds) > MAX_ROWS:
            raise OptionError(
                f"es sends a row of scores for every client and round: {self.runtime.rounds:,} rounds of {asked:,} clients are"
                f" {rows:,} rows, at most {MAX_ROWS:,} are possible"
            )

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        rows, population = Rows.make_forms(self.settings.population), self.settings.population
        reply = Form(
            scores={"score": ArrayForm("float32", (population,))}, text=CONTROL_BYTES, report=self.report_bytes
        )
        kept = Form(sets={POLICY: self.runtime.make_weight_forms(optional=True)}, text=CONTROL_BYTES)
        return {"score": Operation(self.score, Form(scores=rows, text=CONTROL_BYTES, report=0), reply, kept)}

    # ---- server ---------------------------------------------------------------------------------------------------

    def initial_state(self) -> ServerState:
        numbers, population = np.zeros(0, dtype=np.int64), self.settings.population
        rows = Rows(numbers, numbers, np.zeros(0), np.zeros((0, population), dtype=np.float32))
        return ServerState(self.runtime.initial_weights, memory={"rows": rows._asdict(), APPLIED: {}})

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Send the participants the rows that they lack, and make rows of the scores that they return."""
        rows, applied = Rows.read(state.memory["rows"]), dict(state.memory[APPLIED])
        known = Message(weights=state.parameters).digest
        messages = {
            count: Message(scores=rows.skip(count)._asdict(), control={APPLIED: count, "digest": known})
            for count in {int(applied.get(str(client), 0)) for client in this_round.participants}
        }
        asked = {client: messages[int(applied.get(str(client), 0))] for client in this_round.participants}
        scores, examples, reports, refused = {}, {}, {}, list[Failure]()
        for client, reply in this_round.clients.iter_replies("score", asked):
            applied[str(client)] = len(rows.round)  # the client has applied the rows, whether its reply is used or not
            report = read_report(client, reply, self.card.round, self.runtime.spec.sampled_episodes)
            count = reply.control.get("examples", None if self.card.needs_counts else 1)
            if isinstance(report, Failure):
                refused.append(report)
            elif type(count) is not int or not 1 <= count < MAX_COUNTED:
                refused.append(Failure(client, "refused", f"no number of examples: {str(count)[:40]!r}"))
            else:
                scores[client], examples[client], reports[client] = reply.scores["score"], count, report
        this_round.clients.refuse(refused)
        parameters = dict(state.parameters)
        if scores:
            fresh = self.make_rows(this_round.number, scores, examples)
            self.apply(parameters, fresh)
            rows = rows.add(fresh)
        after = ServerState(freeze(parameters), memory={"rows": rows._asdict(), APPLIED: applied})
        return self.report(state, after, reports)

    def make_rows(self, number: int, scores: Mapping[int, Array], examples: Mapping[int, int]) -> Rows:
        """Make the rows of a round.

        Args:
            number: Number of the round.
            scores: The scores of each client.
            examples: Its number of tasks.
        """
        counts = {client: examples[client] if self.settings.weights == "tasks" else 1 for client in scores}
        total = sum(counts.values())
        return Rows(
            np.full(len(scores), number, dtype=np.int64),
            np.array([*scores], dtype=np.int64),
            np.array([counts[client] / total for client in scores]),
            np.array([*scores.values()], dtype=np.float32),
        )

    def report(self, before: ServerState, after: ServerState, reports: Mapping[int, Report]) -> RoundResult:
        """Make the record of a round: the means over clients, and the numbers of each."""
        clients = {client: dict(report.metrics) for client, report in reports.items()}
        norm = update_norm(before.parameters, after.parameters)
        return RoundResult(
            after,
            metrics={**mean_metrics([*clients.values()]), "update_norm": norm},
            clients=clients,
            episodes=[episode for report in reports.values() for episode in report.episodes],
        )

    # ---- both -------------------------------------------------------------------------------------------------------

    def draw_noise(self, number: int, client: int, index: int, name: str, like: Array) -> NDArray[np.float32]:
        """Draw the part of one perturbation that belongs to one parameter.

        Args:
            number: Number of the round.
            client: The client that scores it.
            index: Number of the perturbation, among those of the client.
            name: Name of the parameter.
            like: The parameter.
        """
        drawn, opposite = (index // 2, index % 2) if self.settings.antithetic else (index, 0)
        draws = generator(self.runtime.seed, "perturbation", number, client, drawn, name)
        noise = draws.standard_normal(like.shape, dtype=np.float32)
        return -noise if opposite else noise

    def perturb(self, policy: Parameters, number: int, client: int, index: int) -> dict[str, Array]:
        """Return a policy with one perturbation added.

        Args:
            policy: The policy.
            number: Number of the round.
            client: The client.
            index: The perturbation's number.
        """
        sigma = np.float32(self.settings.sigma)
        return {
            name: (value + sigma * self.draw_noise(number, client, index, name, value)).astype(value.dtype)
            for name, value in policy.items()
        }

    def apply(self, policy: dict[str, Array], rows: Rows) -> None:
        """Update a policy by the scores of its perturbations, row by row.

        Args:
            policy: The policy, whose arrays are replaced.
            rows: The rounds, clients, weights and scores.
        """
        for number, client, weight, score in zip(*rows, strict=True):
            worth = self.scale(score)
            if not worth.any():
                continue
            for name, value in policy.items():
                total = np.zeros(value.shape, dtype=np.float64)
                for index, factor in enumerate(worth):
                    total += factor * self.draw_noise(int(number), int(client), index, name, value)
                step = self.settings.rate * weight / len(worth)
                policy[name] = (value + step * total).astype(value.dtype)

    def scale(self, scores: NDArray[np.float32]) -> NDArray[np.float64]:
        """Standardise or centre the scores of a row; equal ones become 0."""
        wide = scores.astype(np.float64)
        if wide.max() == wide.min():
            return np.zeros_like(wide)
        spread = wide.std() if self.settings.scores == "standardised" else 1.0
        return np.asarray((wide - wide.mean()) / spread, dtype=np.float64)

    # ---- client -----------------------------------------------------------------------------------------------------

    def score(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Bring the client's copy of the policy up to date, and score perturbations of it; runs where the client is."""
        has, start = int(state.control.get(APPLIED, 0)), int(message.control[APPLIED])
        if has != start:
            raise DataError(f"this client's policy has {has} rows, and the server sends those after {start}")
        policy = copy_arrays(state.sets.get(POLICY) or self.runtime.initial_weights)
        rows = Rows.read(message.scores)
        self.apply(policy, rows)
        if Message(weights=freeze(policy)).digest != message.control["digest"]:
            raise DataError(
                "this client computes another policy from the scores than the server does: their numbers are not computed alike;"
                " install the same version of numpy on both machines"
            )
        played = [*self.play(policy, client)]
        scores = [score for score, _, _ in played]
        means = mean_metrics([numbers for _, numbers, _ in played])
        metrics = {**means, "score/spread": float(np.std(scores)), "score/best": max(scores)}
        kept = Message(sets={POLICY: freeze(policy)}, control={APPLIED: start + len(rows.round)})
        reply = Message(
            scores={"score": np.array(scores, dtype=np.float32)},
            control=client.resources.reported_counts,
            report={"metrics": metrics, "episodes": played[0][2]},
        )
        return kept, reply

    def play(
        self, policy: Parameters, client: ClientContext[Site]
    ) -> Iterator[tuple[float, dict[str, float], list[dict[str, Any]]]]:
        """Play the client's tasks of the round with every perturbed policy.

        Args:
            policy: The policy.
            client: The client.

        Yields:
            For each perturbed policy its mean reward, the metrics of its episodes, and a few sampled episodes.
        """
        from fedagentgym.learning.rollouts import collect

        site, learning = client.resources, self.learning
        pool, size = site.env.pool, learning.tasks_per_step
        draws, before = client.stream("tasks"), client.round - 1  # one step in every round
        places = draw_places(learning.task_order, len(pool), size, draws, seed=site.order_seed, step=before)
        tasks = [pool.ids[place] for place in places]
        weights = {part.name: part.weight for part in learning.objectives}
        for index in range(self.settings.population):
            played = collect(
                site.model.load(self.perturb(policy, client.round, client.id, index)),
                site.env,
                tasks,
                group_size=learning.group_size,
                seed=client.derive("play"),
                parallel=learning.parallel_episodes,
                drop_lost=True,
            )
            earned = [
                float(part.sum())
                for group in played.groups
                for part in compute_training_rewards(group, weights, learning.format_penalty)
            ]
            if not earned:
                raise DataError(f"every episode of perturbation {index + 1} was lost, so that it has no score")
            yield mean(earned), played.compute_metrics(), self.sample_episodes(played.groups, client)

    @classmethod
    def describe(cls, settings: ESSettings, scale: Scale) -> Card:
        """Return the card: every participant plays its tasks with every perturbation, and no gradient is computed.

        Over a run a client receives every row once, however often it takes part.
        """
        episodes = settings.population * scale.learning.episodes_per_step
        played = Work(episodes=episodes, scores_up=settings.population) * scale.asked
        received = Work(scores_down=scale.clients * scale.asked * (settings.population + ROW_NUMBERS))
        return replace(
            super().describe(settings, scale),
            round=played + received,
            sent=(Sent("scores", "the mean reward of each perturbed policy on its own tasks"), METRICS),
            kept_copies=("policy without perturbation",),
            needs_counts=settings.weights == "tasks",
            value_refusal="it scores whole policies, and computes no gradients",
        )
