"""FedMOA: clients that adapt the weights of several rewards, and a server that weights the clients.

A client m has objectives k = 0..K_m - 1 with weights w on the simplex; the first is the accuracy of its task, whose name
identifies clients of the same kind.

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
of a round has no predecessor and does not change w. Delta depends on how the loss is reduced over tokens, which the paper does
not state. `hypergradient: raw` takes the mean that is trained on, `answer` the sum over an answer's tokens, `sum` the sum over
all tokens; `cosine` divides Delta by the two norms. The softmax of 1 / w is close to a maximum when a weight is small:
`temperature` softens it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedagentgym.algorithms.averaging import AcceptedReply, LocalStepsSettings
from fedagentgym.algorithms.base import CONTROL_BYTES
from fedagentgym.algorithms.card import Card, Scale, Sent
from fedagentgym.algorithms.fedagent import Averaging
from fedagentgym.algorithms.runtime import Runtime, Site
from fedagentgym.base.errors import FedAgentGymError, OptionError, RefusedError, join_names, unknown_name_error
from fedagentgym.base.settings import Settings
from fedagentgym.federation.algorithm import OPTIMIZER, Failure, Round, RoundResult, ServerState
from fedagentgym.federation.exchange import ClientContext, Operation
from fedagentgym.federation.message import Form, Message
from fedagentgym.learning.advantages import list_objectives
from fedagentgym.learning.state import StepReport

ACCURACY = "accuracy"
OBJECTIVE_BYTES = 4096
ObjectiveWeights = dict[str, float]


class FedMOASettings(LocalStepsSettings):
    """`algorithm: {name: fedmoa, objectives: [[accuracy, format], [accuracy, tags]], ...}`."""

    name: Literal["fedmoa"] = "fedmoa"
    aggregation: Literal["two_stage", "mean"] = Field(
        default="two_stage",
        description="two_stage: by alpha within clusters, then by their numbers of tasks; mean: plain mean of all clients",
    )
    objectives: tuple[tuple[str, ...], ...] = Field(
        default=(),
        description="lists of objectives, given to the clients in turn; by default learning.objectives",
    )
    step_size: float = Field(default=0.01, ge=0.0, description="lambda; 0 keeps the weights where they start")
    local_passes: float | None = Field(
        default=None,
        gt=0,
        description="passes of a client over its own tasks in a round; local_steps is then the maximum of its steps; null: all"
        " clients take local_steps",
    )
    hypergradient: Literal["raw", "answer", "sum", "cosine"] = Field(
        default="raw",
        description="the paper's inner product of gradients of the loss as it is trained on (raw), summed over the tokens of an "
        "answer (answer) or of the whole step (sum); cosine: divided by both norms",
    )
    reset_weights: Literal["broadcast", "uniform"] = Field(
        default="broadcast",
        description="objective weights at a round's start; broadcast: the cluster's for shared objectives; uniform: 1/K each",
    )
    score: Literal["paper", "relative"] = Field(
        default="paper",
        description="paper: 1 / (w0 + eps); relative: 1 / (w0 * K + eps), fair to clients with more objectives",
    )
    temperature: float = Field(default=1.0, gt=0.0, description="temperature of the softmax over a cluster's clients")
    epsilon: float = Field(default=1e-6, gt=0.0, description="keeps 1 / w0 finite")

    @model_validator(mode="after")
    def _refuse_privacy(self) -> Self:
        if self.privacy is not None:
            raise ValueError(
                "fedmoa's clients report objective weights, which depend on their tasks and are not protected by noise on the"
                " mean of updates: privacy cannot be used with it"
            )
        return self

    @property
    def starts_equal(self) -> bool:
        """True if every round begins with equal weights, which then change."""
        return self.reset_weights == "uniform" and self.step_size > 0

    def count_steps(self, tasks: int, tasks_per_step: int) -> int:
        """The steps of a client with this many tasks in a round."""
        if self.local_passes is None:
            return self.local_steps
        return min(self.local_steps, max(1, round(self.local_passes * tasks / tasks_per_step)))


class FedMOA(Averaging[FedMOASettings]):
    """Server side and client operation of FedMOA; see the module's docstring."""

    settings_class: ClassVar[type[Settings]] = FedMOASettings

    def __init__(self, settings: FedMOASettings, runtime: Runtime) -> None:
        super().__init__(settings, runtime)
        configured = tuple(part.name for part in runtime.learning.objectives)
        for names in settings.objectives or (configured,):
            check_objectives(names, "algorithm.objectives" if settings.objectives else "learning.objectives")
        given = [part.weight for part in runtime.learning.objectives]
        if any(weight < 0 for weight in given) or (given and not any(given)):
            raise OptionError(
                f"fedmoa needs weights of learning.objectives that are at least 0 and not all 0, got {given}"
            )
        if len(set(given)) > 1 and (settings.objectives or settings.starts_equal):
            chosen = "algorithm.objectives" if settings.objectives else "reset_weights: uniform"
            raise OptionError(f"with {chosen} fedmoa begins with equal weights: leave out those of learning.objectives")
        loss = runtime.learning.loss
        if settings.hypergradient in ("answer", "sum") and (loss.averaging != "token" or loss.rows is not None):
            raise OptionError(
                f"hypergradient: {settings.hypergradient} undoes a mean over tokens: it needs learning.loss=token without rows"
            )

    # ---- server ---------------------------------------------------------------------------------------------------

    def prepare(self, state: ServerState, this_round: Round) -> RoundResult:
        """Check, before any work is done, that clients' tasks pay their objectives. No client is called."""
        for client in self.runtime.sites.list_openable(this_round.clients.ids):
            self.resolve_objectives(self.resources(client))
        return RoundResult(state)

    def run_round(self, state: ServerState, this_round: Round) -> RoundResult:
        """Send theta and the weights that the members of each cluster share; average in two stages. Clusters without participants
        keep their weights, and are recorded as empty."""
        shared: Mapping[str, ObjectiveWeights] = state.memory.get("shared", {})
        with self.train_participants(state, this_round, control={"shared": shared}) as replies:
            after = self.combine(state, replies.used, replies.read(), this_round)
        objectives = {reply.client: read_objectives(reply) for reply in replies.used}
        alpha, clusters = self.compute_cluster_shares(replies.used)
        renewed = {
            name: average_shared_weights({m: objectives[m] for m in members}, alpha)
            for name, members in clusters.items()
        }
        after = replace(after, memory={**after.memory, "shared": {**shared, **renewed}})
        result = self.report(after, replies, this_round)
        clients = {client: dict(metrics) for client, metrics in result.clients.items()}
        for client, weights in objectives.items():
            clients[client] |= {f"weight/{name}": value for name, value in weights.items()}
            clients[client]["alpha"] = alpha[client]
        empty = {f"members/{name}": 0.0 for name in shared}
        members = {f"members/{name}": float(len(part)) for name, part in clusters.items()}
        metrics = {**empty, **result.metrics, **share_metrics(alpha, clusters), **members}
        return replace(result, metrics=metrics, clients=clients)

    def accept(self, client: int, message: Message, state: ServerState) -> AcceptedReply | Failure:
        """Accept a reply; it must also contain the weights of its objectives."""
        reply = super().accept(client, message, state)
        if isinstance(reply, Failure):
            return reply
        try:
            check_weights(read_objectives(reply))
        except (AttributeError, TypeError, ValueError, OptionError) as error:
            return Failure(client, "refused", f"malformed objective weights: {error}")
        return reply

    def client_weights(self, replies: Sequence[AcceptedReply], this_round: Round) -> list[float]:
        """The two stages in one: the weight of client m is alpha_m times its cluster's number of examples."""
        if self.settings.aggregation == "mean":
            return super().client_weights(replies, this_round)
        alpha, clusters = self.compute_cluster_shares(replies)
        examples = {reply.client: reply.examples for reply in replies}
        cluster_size = {m: sum(examples[other] for other in members) for members in clusters.values() for m in members}
        return [alpha[reply.client] * cluster_size[reply.client] for reply in replies]

    def compute_cluster_shares(self, replies: Sequence[AcceptedReply]) -> tuple[dict[int, float], dict[str, list[int]]]:
        """alpha of every client, and the clients of every cluster, by the name of its accuracy."""
        objectives = {reply.client: read_objectives(reply) for reply in replies}
        clusters: dict[str, list[int]] = {}
        for client, weights in objectives.items():
            clusters.setdefault(next(name for name in weights if is_accuracy(name)), []).append(client)
        alpha: dict[int, float] = {}
        for name, members in clusters.items():
            relative = self.settings.score == "relative"
            first = [objectives[m][name] * (len(objectives[m]) if relative else 1) for m in members]
            scores = np.array([1.0 / (weight + float(self.settings.epsilon)) for weight in first])
            alpha.update(zip(members, softmax(scores / self.settings.temperature).tolist(), strict=True))
        return alpha, clusters

    # ---- client ---------------------------------------------------------------------------------------------------

    def train_client(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        """Take tau steps; after each, move the objective weights by the agreement of gradients with those of the step before."""
        site = client.resources
        names = self.resolve_objectives(site)
        weights = self.init_objective_weights(names, state.control.get("objectives"), message.control["shared"])
        tracker = HypergradientTracker(weights, self.settings.step_size, self.settings.hypergradient)
        local = self.open_learner(site, self.read_start(state, message, client))
        steps = self.settings.count_steps(len(site.env.pool), self.learning.tasks_per_step)
        # In each earlier round this client took `steps` steps, while the server counts `local_steps`.
        local.skipped = local.step // self.settings.local_steps * (self.settings.local_steps - steps)
        report = local.run(
            steps,
            seed=client.derive("train"),
            weights=weights,
            gradients_of=names if self.settings.step_size > 0 else (),
            after_step=lambda step: tracker.update_weights(reduce_gradients(step, self.settings.hypergradient)),
        )
        after = local.get_state()
        control = {"objectives": tracker.weights}
        report = replace(report, metrics={**report.metrics, **tracker.compute_metrics()})
        reply = self.make_reply(client, local, after, report, control=control)
        return Message(sets={OPTIMIZER: after.optimizer}, control=control), reply

    def resolve_objectives(self, site: Site) -> tuple[str, ...]:
        """The objectives of a client, accuracy first; `accuracy` is replaced by the accuracy that its own tasks pay."""
        configurations = self.settings.objectives or (tuple(part.name for part in self.learning.objectives),)
        chosen = configurations[site.client % len(configurations)]
        own = tuple(name for name in site.env.reward_names if is_accuracy(name))
        if not own:
            raise OptionError(
                f"client {site.client} has no accuracy objective: its tasks pay {join_names(site.env.reward_names) or 'nothing'}"
            )
        if ACCURACY in chosen and len(own) != 1:
            raise OptionError(
                f"client {site.client} has tasks with the accuracies {join_names(own)}: name one of them instead of"
                f" {ACCURACY!r}"
            )
        names = tuple(own[0] if name == ACCURACY else name for name in chosen)
        check_objectives(names, f"the objectives of client {site.client}")
        if strangers := [name for name in names if is_accuracy(name) and name not in own]:
            raise OptionError(
                f"client {site.client} has the objectives {join_names(strangers)}, its own tasks pay {join_names(own)}: write"
                f" {ACCURACY!r} for the accuracy of a client's own tasks"
            )
        payable = list_objectives(site.env.reward_names)
        if unknown := [name for name in names if name not in payable]:
            raise unknown_name_error(f"objective of client {site.client}", unknown[0], payable)
        first = next(name for name in names if is_accuracy(name))
        return (first, *(name for name in names if name != first))

    def init_objective_weights(
        self, names: Sequence[str], own: Mapping[str, Any] | None, shared: Mapping[str, Mapping[str, float]]
    ) -> ObjectiveWeights:
        """The weights at the start of a round: the cluster's for shared objectives, the client's for the rest, on the simplex.

        Before the first round they are those of `learning.objectives`, which also stay if weights do not change; with
        `reset_weights: uniform` or objectives of the method's own they are equal.
        """
        uniform = dict.fromkeys(names, 1.0 / len(names))
        given = {part.name: part.weight for part in self.learning.objectives}
        unlike, named = len(set(given.values())) > 1, ACCURACY not in given
        given = {names[0] if name == ACCURACY else name: weight for name, weight in given.items()}
        configured = {name: given[name] for name in names} if set(names) <= set(given) else {}
        if self.settings.step_size == 0:
            return configured if configured and not self.settings.objectives and (named or unlike) else uniform
        if self.settings.starts_equal:
            return uniform
        first = normalize_weights(configured) if configured and unlike else uniform
        mine = {**first, **{name: float(value) for name, value in (own or {}).items() if name in first}}
        theirs = {name: float(value) for name, value in shared.get(names[0], {}).items() if name in first}
        return normalize_weights({**mine, **theirs})

    # ---- what the method declares, and what it checks ---------------------------------------------------------------

    def make_operations(self) -> Mapping[str, Operation[Site]]:
        form = Form(self.runtime.make_weight_forms(), text=CONTROL_BYTES + OBJECTIVE_BYTES)
        reply = replace(form, report=self.report_bytes)
        return {"train": Operation(self.train_client, form, reply, self.make_state_form(text=OBJECTIVE_BYTES))}

    @classmethod
    def describe(cls, settings: FedMOASettings, scale: Scale) -> Card:
        """Return the card of averaging; also the weights of the objectives are sent. With `local_passes` a client takes as many
        steps as its tasks need, where their number is known."""
        card = super().describe(settings, scale)
        if settings.local_passes is not None and scale.held:
            steps = [settings.count_steps(tasks, scale.learning.tasks_per_step) for tasks in sorted(scale.held)]
            trained = scale.count_local_work(sum(steps[-scale.asked :]))
            card = replace(card, round=replace(trained, models_down=scale.asked, models_up=scale.asked))
        objectives = Sent("objectives", "the names and weights of its objectives", keys=("objectives",))
        counts = settings.aggregation != "mean" or card.needs_counts
        refusal = (
            "its hypergradient compares the episodes of a group, objective by objective" if settings.step_size else ""
        )
        return replace(card, sent=(*card.sent, objectives), needs_counts=counts, value_refusal=refusal)

    def check_held(self, site: Site) -> None:
        """Check that the client's tasks have rewards for its objectives."""
        try:
            self.resolve_objectives(site)
        except FedAgentGymError:
            raise RefusedError("it has tasks that do not pay the objectives which the run gives it") from None


def reduce_gradients(step: StepReport, kind: str) -> Mapping[str, NDArray[np.float64]]:
    """The objectives' gradients under the reduction `kind`; those in `step` are of the mean over all its tokens."""
    each, episodes = step.metrics.get("tokens", 0.0), step.metrics["episodes"]
    factor = {"answer": each, "sum": each * episodes}.get(kind, 1.0)
    return {name: gradient * factor for name, gradient in step.gradients.items()}


class HypergradientTracker:
    """The weights of one client during a round."""

    def __init__(self, weights: ObjectiveWeights, step_size: float, kind: str) -> None:
        self.weights = dict(weights)
        self._step_size, self._kind = step_size, kind
        self._previous: Mapping[str, NDArray[np.float64]] = {}
        self._deltas: dict[str, list[float]] = {}

    def update_weights(self, gradients: Mapping[str, NDArray[np.float64]]) -> ObjectiveWeights:
        """Move by lambda * <g(t), g(t-1)> and project to the simplex; the first step only stores the gradients."""
        if self._previous and gradients:
            deltas = {}
            for name in self.weights:
                before, now = self._previous[name], gradients[name]
                delta = float(before @ now)
                if self._kind == "cosine" and delta != 0.0:
                    delta /= float(np.linalg.norm(before) * np.linalg.norm(now))
                deltas[name] = delta
                self._deltas.setdefault(name, []).append(delta)
            moved = np.array([weight + self._step_size * deltas[name] for name, weight in self.weights.items()])
            self.weights = dict(zip(self.weights, project_to_simplex(moved).tolist(), strict=True))
        self._previous = gradients
        return self.weights

    def compute_metrics(self) -> dict[str, float]:
        return {f"delta/{name}": float(np.mean(values)) for name, values in self._deltas.items()}


def project_to_simplex(point: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest point with entries >= 0 that sum to 1 (Euclidean, exact: sort, and find how much to subtract from each).

    >>> project_to_simplex(np.array([0.5, 0.7])).round(6).tolist()
    [0.4, 0.6]
    """
    ordered = np.sort(point)[::-1]
    excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(point) + 1)
    kept = int(np.flatnonzero(ordered > excess)[-1])
    projected: NDArray[np.float64] = np.maximum(point - excess[kept], 0.0)
    return projected


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numerically stable: the maximum is subtracted first."""
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum(), dtype=np.float64)


def average_shared_weights(objectives: Mapping[int, ObjectiveWeights], alpha: Mapping[int, float]) -> ObjectiveWeights:
    """The mean weight, by alpha, of each objective that every member of a cluster has."""
    members = sorted(objectives)
    common = [name for name in objectives[members[0]] if all(name in objectives[m] for m in members)]
    return {name: float(sum(alpha[m] * objectives[m][name] for m in members)) for name in common}


def share_metrics(alpha: Mapping[int, float], clusters: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """The number of clusters, and the evenness of the weights in each: 1 if equal, 0 if one client has all the weight."""
    metrics = {"clusters": float(len(clusters))}
    for name, members in clusters.items():
        shares = np.array([alpha[m] for m in members])
        entropy = float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())
        metrics[f"alpha_evenness/{name}"] = entropy / float(np.log(len(members))) if len(members) > 1 else 1.0
    return metrics


def is_accuracy(name: str) -> bool:
    return name == ACCURACY or name.startswith(f"{ACCURACY}/")


def check_objectives(names: Sequence[str], where: str) -> None:
    """Check that there is one accuracy and no objective twice."""
    if len(set(names)) != len(names):
        raise OptionError(f"{where} name an objective twice: {join_names(names)}")
    if sum(is_accuracy(name) for name in names) != 1:
        raise OptionError(
            f"{where} need exactly one accuracy, which determines the kind of the client: got {join_names(names) or 'none'}"
        )


def read_objectives(reply: AcceptedReply) -> ObjectiveWeights:
    """The objective weights that a client reports."""
    return {str(name): float(value) for name, value in dict(reply.control.get("objectives") or {}).items()}


def check_weights(weights: ObjectiveWeights) -> None:
    """Refuse invalid objective weights, since they come from another machine."""
    check_objectives(tuple(weights), "the answered objectives")
    if not all(np.isfinite(value) and value >= 0.0 for value in weights.values()):
        raise OptionError(f"objective weights are numbers of at least 0, got {weights}")


def normalize_weights(weights: ObjectiveWeights) -> ObjectiveWeights:
    """The same proportions, scaled to sum 1; equal shares if all are zero."""
    total = sum(weights.values())
    return {name: value / total if total > 0 else 1.0 / len(weights) for name, value in weights.items()}
