"""FedMOA: clients that weigh several rewards, each in its own way, and a server that weighs the clients.

A client m has objectives k = 0..K_m - 1 with weights w on the simplex; the first is the accuracy of its task, by whose name
clients of the same kind find each other.

    client   for each local step t:
    client     roll out; learn from the reward sum_k w_k r_k                              (one GRPO step)
    client     g_k(t) = gradient of objective k's own loss at the last decoder block      (same roll-outs)
    client     Delta_k = <g_k(t), g_k(t-1)>;  w_k += lambda * Delta_k;  w = the nearest point of the simplex
    client   return theta_m, w, N_m
    server   cluster the clients by the name of their accuracy; within a cluster
    server     s_m = 1 / (w_m0 + eps);  alpha = softmax(s);  theta_c = sum_m alpha_m theta_m
    server     the weight of an objective that all members have: sum_m alpha_m w_mk
    server   theta = sum_c N_c theta_c / sum_c N_c

g_k belongs to a virtual bias added to the block's output, a vector whose length does not depend on the batch. The first step
of a round has no predecessor and leaves w alone. `hypergradient: cosine` divides Delta by the two norms: scale free, so that a
small model's weights move at all. Softmax of 1 / w is close to a maximum when a weight is small: `temperature` softens it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.algorithms.fedagent import CONTROL_BYTES, FedAgent, FedAgentSettings, client_means
from fedagentgym.algorithms.support.replies import contributions, episodes_of, metrics_of
from fedagentgym.algorithms.support.runtime import Site, Workbench
from fedagentgym.algorithms.support.state_arrays import OPTIMIZER, marked
from fedagentgym.base.errors import OptionError, listed, unknown
from fedagentgym.base.settings import Settings
from fedagentgym.federation.aggregation import Contribution, weighted_mean
from fedagentgym.federation.algorithm import Round, RoundResult
from fedagentgym.federation.clients import answered
from fedagentgym.federation.failures import Failure
from fedagentgym.federation.message import Array, Form, Message
from fedagentgym.federation.operation import ClientContext, Operation
from fedagentgym.learning.objectives import known_names

ACCURACY = "accuracy"
OBJECTIVE_BYTES = 4096
Weights = dict[str, float]


class FedMOASettings(FedAgentSettings):
    """`algorithm: {name: fedmoa, objectives: [[accuracy, format], [accuracy, tags]], ...}`."""

    name: Literal["fedmoa"] = "fedmoa"  # type: ignore[assignment]
    aggregation: Literal["two_stage", "mean"] = Field(  # type: ignore[assignment]
        default="two_stage",
        description="two_stage: by alpha in clusters, then by size; mean: plain mean of all clients",
    )
    objectives: tuple[tuple[str, ...], ...] = Field(
        default=(),
        description="configurations of objectives, dealt to the clients in turn; learning.objectives by default",
    )
    step_size: float = Field(default=0.01, ge=0.0, description="lambda; 0 keeps the weights where they start")
    hypergradient: Literal["raw", "cosine"] = Field(default="raw", description="raw: the paper's inner product; cosine")
    reset_weights: Literal["broadcast", "uniform"] = Field(
        default="broadcast", description="start of a round: the cluster's weights for shared objectives, or 1/K each"
    )
    score: Literal["paper", "relative"] = Field(
        default="paper",
        description="paper: 1 / (w0 + eps); relative: 1 / (w0 * K + eps), fair to clients with more objectives",
    )
    temperature: float = Field(default=1.0, gt=0.0, description="of the softmax over a cluster's clients")
    epsilon: float = Field(default=1e-6, gt=0.0, description="keeps 1 / w0 finite")


class FedMOA(FedAgent):
    """Server side and client operation of FedMOA; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = FedMOASettings

    def __init__(self, settings: Any, bench: Workbench) -> None:
        super().__init__(settings, bench)
        configured = tuple(part.name for part in bench.learning.objectives)
        for names in settings.objectives or (configured,):
            check_objectives(names, "algorithm.objectives" if settings.objectives else "learning.objectives")

    @property
    def operations(self) -> Mapping[str, Operation]:
        if not self._operations:
            theta = Form(self.bench.forms(), text=CONTROL_BYTES + OBJECTIVE_BYTES)
            kept = self._state_form()
            state = Form(kept.arrays, text=OBJECTIVE_BYTES)
            self._operations["train"] = Operation(self.train, theta, theta, state)
        return self._operations

    # ---- server ---------------------------------------------------------------------------------------------------

    def prepare(self, state: Message, round: Round) -> RoundResult:
        """No client is asked anything; one whose objectives its own tasks cannot pay is found before any work is done."""
        for client in round.clients.ids:
            self.objectives_of(self.resources(client))
        return RoundResult(state)

    def round(self, state: Message, round: Round) -> RoundResult:
        """Send theta and the clusters' weights, take what comes back, average it in two stages."""
        step = (round.number - 1) * self.settings.local_steps
        shared = state.control.get("shared", {})
        message = Message(weights=state.weights, control={"step": step, "shared": shared})
        answers = answered(round.clients.call("train", dict.fromkeys(round.participants, message)))
        given, malformed = contributions(answers)
        round.clients.refuse(malformed)
        answers = {each.client: answers[each.client] for each in given}
        good, refused, norms = self.settings.checks.apply(state.weights, given)
        objectives, malformed = read_objectives({each.client: answers[each.client] for each in good})
        good = [each for each in good if each.client in objectives]
        round.clients.refuse([*refused, *malformed])
        alpha, clusters = self.cluster_shares(objectives)
        theta = self.averaged(state.weights, good, alpha, clusters)
        fresh = {name: shared_weights({m: objectives[m] for m in members}, alpha) for name, members in clusters.items()}
        metrics = client_means(answers, norms) | share_metrics(alpha, clusters)
        metrics |= {f"members/{name}": float(len(clusters.get(name, ()))) for name in {**shared, **fresh}}
        return RoundResult(
            Message(weights=theta, control={"shared": {**shared, **fresh}}),
            metrics=metrics,
            clients={m: client_metrics(answers[m], norms[m], objectives.get(m, {}), alpha.get(m)) for m in answers},
            episodes=episodes_of(answers),
        )

    def cluster_shares(self, objectives: Mapping[int, Weights]) -> tuple[dict[int, float], dict[str, list[int]]]:
        """alpha of every client, and the clients of every cluster, by the name of its accuracy."""
        clusters: dict[str, list[int]] = {}
        for client, weights in sorted(objectives.items()):
            clusters.setdefault(accuracy_of(weights), []).append(client)
        alpha: dict[int, float] = {}
        for members in clusters.values():
            scores = np.array([self._score(objectives[client]) for client in members])
            alpha.update(zip(members, softmax(scores / self.settings.temperature).tolist(), strict=True))
        return alpha, clusters

    def _score(self, weights: Weights) -> float:
        first = weights[accuracy_of(weights)] * (len(weights) if self.settings.score == "relative" else 1)
        return 1.0 / (first + float(self.settings.epsilon))

    def averaged(
        self,
        current: Mapping[str, Array],
        given: Sequence[Contribution],
        alpha: Mapping[int, float],
        clusters: Mapping[str, Sequence[int]],
    ) -> dict[str, Array]:
        """The two stages in one sum: client m counts alpha_m times its cluster's share of the examples."""
        if not given:
            return dict(current)
        if self.settings.aggregation == "mean":
            return weighted_mean(current, given, [1.0] * len(given))
        examples = {each.client: each.examples for each in given}
        cluster_size = {m: sum(examples[other] for other in members) for members in clusters.values() for m in members}
        return weighted_mean(current, given, [alpha[each.client] * cluster_size[each.client] for each in given])

    # ---- client ---------------------------------------------------------------------------------------------------

    def train(self, state: Message, message: Message, client: ClientContext) -> tuple[Message, Message]:
        """tau steps, after each of which the weights follow how the objectives' gradients agree with the step before."""
        site: Site = client.resources
        names = self.objectives_of(site)
        weights = self.starting_weights(names, state.control.get("objectives"), message.control["shared"])
        tracker = Hypergradient(weights, self.settings.step_size, self.settings.hypergradient)
        local = self.started(site, state, message)
        report = local.run(
            self.settings.local_steps,
            seed=client.derive("train"),
            weights=weights,
            gradients_of=names if self.settings.step_size > 0 else (),
            after_step=lambda step: tracker.follow(step.gradients),
        )
        after = local.state()
        answer = Message(
            weights=after.weights,
            control={"examples": site.examples, "objectives": tracker.weights},
            report={
                "metrics": {**report.metrics, **tracker.metrics()},
                "episodes": self.sampled(report.groups, client),
            },
        )
        return Message(weights=marked(OPTIMIZER, after.optimizer), control={"objectives": tracker.weights}), answer

    def objectives_of(self, site: Site) -> tuple[str, ...]:
        """The objectives of a client, accuracy first; `accuracy` stands for the accuracy that its own tasks pay."""
        configurations = self.settings.objectives or (tuple(part.name for part in self.learning.objectives),)
        chosen = configurations[site.client % len(configurations)]
        own = own_accuracies(site)
        if not own:
            raise OptionError(
                f"client {site.client} has no accuracy objective: its tasks pay {listed(site.env.reward_names) or 'nothing'}"
            )
        if ACCURACY in chosen and len(own) != 1:
            raise OptionError(
                f"client {site.client} has tasks with the accuracies {listed(own)}: name the one that is meant, instead of"
                f" {ACCURACY!r}"
            )
        names = tuple(own[0] if name == ACCURACY else name for name in chosen)
        check_objectives(names, f"the objectives of client {site.client}")
        if strangers := [name for name in names if is_accuracy(name) and name not in own]:
            raise OptionError(
                f"client {site.client} is to be judged by {listed(strangers)}, its own tasks pay {listed(own)}: write"
                f" {ACCURACY!r} for whatever a client's own tasks pay"
            )
        payable = known_names(site.env.reward_names)
        if odd := [name for name in names if name not in payable]:
            raise unknown(f"objective of client {site.client}", odd[0], payable)
        first = next(name for name in names if is_accuracy(name))
        return (first, *(name for name in names if name != first))

    def starting_weights(
        self, names: Sequence[str], own: Mapping[str, Any] | None, shared: Mapping[str, Mapping[str, float]]
    ) -> Weights:
        """The weights at the start of a round: the cluster's for what is shared, the client's for the rest, on the simplex."""
        uniform = dict.fromkeys(names, 1.0 / len(names))
        if self.settings.reset_weights == "uniform" or self.settings.step_size == 0:
            configured = {part.name: part.weight for part in self.learning.objectives}
            fixed = self.settings.step_size == 0 and not self.settings.objectives
            return {name: configured[name] for name in names} if fixed and set(names) <= set(configured) else uniform
        mine = {**uniform, **{name: float(value) for name, value in (own or {}).items() if name in uniform}}
        theirs = {name: float(value) for name, value in shared.get(names[0], {}).items() if name in uniform}
        return renormalised({**mine, **theirs})


class Hypergradient:
    """The weights of one client during a round."""

    def __init__(self, weights: Weights, step_size: float, kind: str) -> None:
        self.weights = dict(weights)
        self._step_size, self._kind = step_size, kind
        self._previous: Mapping[str, NDArray[np.float64]] = {}
        self._deltas: dict[str, list[float]] = {}

    def follow(self, gradients: Mapping[str, NDArray[np.float64]]) -> Weights:
        """Move by lambda * <g(t), g(t-1)> and come back to the simplex; the first step only remembers."""
        if self._previous and gradients:
            deltas = {name: self._agreement(self._previous[name], gradients[name]) for name in self.weights}
            for name, delta in deltas.items():
                self._deltas.setdefault(name, []).append(delta)
            moved = np.array([weight + self._step_size * deltas[name] for name, weight in self.weights.items()])
            self.weights = dict(zip(self.weights, project_to_simplex(moved).tolist(), strict=True))
        self._previous = gradients
        return self.weights

    def _agreement(self, before: NDArray[np.float64], now: NDArray[np.float64]) -> float:
        product = float(before @ now)
        if self._kind == "raw" or product == 0.0:
            return product
        return product / float(np.linalg.norm(before) * np.linalg.norm(now))

    def metrics(self) -> dict[str, float]:
        return {f"delta/{name}": float(np.mean(values)) for name, values in self._deltas.items()}


def project_to_simplex(point: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest point with entries >= 0 that sum to 1 (Euclidean, exact: sort, and find how much to take off each).

    >>> project_to_simplex(np.array([0.5, 0.7])).round(6).tolist()
    [0.4, 0.6]
    """
    ordered = np.sort(point)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(point) + 1)
    kept = int(np.flatnonzero(ordered > excess)[-1])
    projected: NDArray[np.float64] = np.maximum(point - excess[kept], 0.0)
    return projected


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stable: the greatest score is taken off first."""
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum(), dtype=np.float64)


def shared_weights(objectives: Mapping[int, Weights], alpha: Mapping[int, float]) -> Weights:
    """The mean weight, by alpha, of each objective that every member of a cluster has."""
    members = sorted(objectives)
    common = [name for name in objectives[members[0]] if all(name in objectives[m] for m in members)]
    return {name: float(sum(alpha[m] * objectives[m][name] for m in members)) for name in common}


def share_metrics(alpha: Mapping[int, float], clusters: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """How evenly a cluster's clients count: 1 is evenly, 0 is one client alone."""
    metrics = {"clusters": float(len(clusters))}
    for name, members in clusters.items():
        shares = np.array([alpha[m] for m in members])
        entropy = float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())
        metrics[f"alpha_evenness/{name}"] = entropy / float(np.log(len(members))) if len(members) > 1 else 1.0
    return metrics


def client_metrics(answer: Message, norm: float, objectives: Weights, alpha: float | None) -> dict[str, float]:
    """What is recorded of one client; one that was left out has neither weights nor a share."""
    share = {} if alpha is None else {"alpha": alpha}
    return {**metrics_of(answer), **marked("weight/", objectives), **share, "update_norm": norm}


def own_accuracies(site: Site) -> tuple[str, ...]:
    """The accuracy components that this client's tasks can pay."""
    return tuple(name for name in site.env.reward_names if is_accuracy(name))


def is_accuracy(name: str) -> bool:
    return name == ACCURACY or name.startswith(f"{ACCURACY}/")


def accuracy_of(weights: Mapping[str, float]) -> str:
    """The name that decides a client's cluster."""
    return next(name for name in weights if is_accuracy(name))


def check_objectives(names: Sequence[str], where: str) -> None:
    """One accuracy, nothing twice."""
    if len(set(names)) != len(names):
        raise OptionError(f"{where} name an objective twice: {listed(names)}")
    if sum(is_accuracy(name) for name in names) != 1:
        raise OptionError(
            f"{where} need exactly one accuracy, which says what kind of client this is: got {listed(names) or 'none'}"
        )


def read_objectives(answers: Mapping[int, Message]) -> tuple[dict[int, Weights], list[Failure]]:
    """The objective weights of the answers: they come from other machines, so what is not one is refused."""
    objectives, malformed = {}, []
    for client, answer in answers.items():
        plain = answer.control.get("objectives")
        try:
            weights = {str(name): float(value) for name, value in dict(plain or {}).items()}
            check_objectives(tuple(weights), "the answered objectives")
            if not all(np.isfinite(value) and value >= 0.0 for value in weights.values()):
                raise OptionError(f"objective weights are numbers of at least 0, got {weights}")
            objectives[client] = weights
        except (AttributeError, TypeError, ValueError, OptionError) as error:
            malformed.append(Failure(client, "refused", f"malformed objective weights: {error}"))
    return objectives, malformed


def renormalised(weights: Weights) -> Weights:
    """The same proportions, summing to 1; equal shares if all are zero."""
    total = sum(weights.values())
    return {name: value / total if total > 0 else 1.0 / len(weights) for name, value in weights.items()}
