"""Runs whose tasks stay on the clients' own machines: the owners' permissions, and evaluation on these machines.

The server calls `join` before the first round, so that a machine which does not take part says so at the start, and `evaluate` in
rounds that are evaluated. The replies of every method are limited to the kinds of data that the owner allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedagentgym.algorithms.base import BaseAlgorithm, make_algorithm
from fedagentgym.algorithms.card import CATEGORIES, COUNT, EVALUATION, METRICS, SECTIONS, Card
from fedagentgym.algorithms.recipe import Owner, admit_recipe
from fedagentgym.algorithms.reports import PERCENTILE
from fedagentgym.algorithms.runtime import ExperimentSpec, OwnSites, Runtime, Site
from fedagentgym.base.errors import FedAgentGymError, OptionError, RefusedError
from fedagentgym.base.streams import derive
from fedagentgym.federation.algorithm import Clients, ServerState
from fedagentgym.federation.backends import Backend
from fedagentgym.federation.exchange import ClientContext, Operation, clean_text
from fedagentgym.federation.message import Form, Message
from fedagentgym.learning.settings import EvaluationSettings

if TYPE_CHECKING:
    from fedagentgym.partitions.held import HeldSettings, HeldTasks

JOIN, EVALUATE = "join", "evaluate"
JOIN_CALL, EVALUATE_CALL = 900, 901
"""Numbers of these calls within a round, beyond those of any method."""
EVALUATION_BYTES = 1 << 16
OPTIONAL = frozenset({METRICS.kind, COUNT.kind, EVALUATION.kind, CATEGORIES.kind})
"""Kinds of data that a reply leaves out if the owner does not allow them. If any other kind is not allowed, a call is refused."""


# ---- on the owner's machine -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldApplication:
    """The application on a machine that holds tasks: the method's operations, limited to what the owner allows."""

    algorithm: BaseAlgorithm[Any]

    @cached_property
    def operations(self) -> Mapping[str, Operation[Site]]:
        return make_held_operations(self.algorithm)

    def resources(self, client: int) -> Site:
        found: Site = self.algorithm.resources(client)
        return found

    def admit(self, client: int) -> str:
        """The digest of a client's tasks, if their owner allows what this run asks; otherwise a `RefusedError`."""
        held = _get_own(self.algorithm).open_held(client)
        if reasons := list_objections(self.algorithm.card, self.algorithm.settings.name, held.settings):
            raise RefusedError(f"it {reasons[0]}")
        if lacks_held_out(self.algorithm.runtime.spec.evaluation, held):
            raise RefusedError("it holds no tasks back for evaluation (held_out)")
        self.algorithm.check_held(self.algorithm.resources(client))
        return held.digest


def build_held(
    spec: ExperimentSpec | Mapping[str, Any],
    device: str | None = None,
    held: Mapping[int, str] | None = None,
    folder: Path | None = None,
    owner: Mapping[str, Any] | None = None,
) -> HeldApplication:
    """Build a worker's application for a run with held tasks. `held` has the owner's file of each client; evaluated episodes stay
    in `folder`."""
    loaded = spec if isinstance(spec, ExperimentSpec) else ExperimentSpec.load(spec, "spec")
    if held is None or folder is None:
        raise RefusedError(
            "this run leaves tasks on the clients' machines (partition.sampler held), and this machine names none:"
            ' give --node-config tasks="/a/client.yaml"'
        )
    loaded = loaded.without_local_data()
    if owner is not None:
        loaded = admit_recipe(loaded, Owner(**owner))
    return HeldApplication(make_algorithm(loaded, Runtime(loaded, device, own=OwnSites(held, folder))))


def _get_own(algorithm: BaseAlgorithm[Any]) -> OwnSites:
    """The tasks that this machine holds."""
    sites = algorithm.runtime.sites
    assert isinstance(sites, OwnSites), "the server runs no operation of its clients"
    return sites


def list_objections(card: Card, name: str, owner: HeldSettings) -> list[str]:
    """Return a phrase for each kind of data that the method needs to send and the owner of the tasks does not allow."""
    found = [
        f"does not allow {one.kind}, which {name} sends: {one.what} (allow)"
        for one in card.sent
        if one.kind not in owner.allow and (one.kind != METRICS.kind or card.needs_metrics)
    ]
    if card.needs_counts and "count" not in owner.share:
        found.append(f"does not share its number of tasks, by which {name} weighs its clients (share)")
    return found


def lacks_held_out(evaluation: EvaluationSettings | None, held: HeldTasks) -> bool:
    """Return whether a run evaluates at clients, and the owner allows it but holds no tasks back."""
    asked = evaluation is not None and "held_out" in evaluation.at_clients
    return asked and EVALUATION.kind in held.settings.allow and held.held_out is None


def make_held_operations(algorithm: BaseAlgorithm[Any]) -> dict[str, Operation[Site]]:
    """The method's operations and `evaluate`, limited to what the owner allows, and `join`."""
    operations = dict(algorithm.make_operations())
    weights = Form(algorithm.runtime.make_weight_forms())
    operations[EVALUATE] = Operation(_Evaluate(algorithm), weights, Form(text=EVALUATION_BYTES))
    operations = {name: replace(one, run=_limit(algorithm, one.run)) for name, one in operations.items()}
    return {**operations, JOIN: Operation(_join, Form(), Form())}


Run = Callable[[Message, Message, ClientContext[Site]], tuple[Message, Message]]


def _limit(algorithm: BaseAlgorithm[Any], run: Run) -> Run:
    """The operation, whose reply is limited to what the owner allows."""

    def limited(state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        kept, reply = run(state, message, client)
        return kept, limit_reply(reply, algorithm.card, _get_own(algorithm).open_held(client.id).settings)

    return limited


def limit_reply(reply: Message, card: Card, owner: HeldSettings) -> Message:
    """Limit a reply to what an owner allows.

    Args:
        reply: The reply.
        card: The card of the method, which names all that it sends.
        owner: The decisions of the owner.

    Returns:
        The reply without sampled episodes, and without metrics, counts and evaluations that are not allowed.

    Raises:
        RefusedError: If the reply holds anything else that is not allowed, or that the card does not name.
    """
    admitted, named = {*owner.allow, *owner.share}, {one.kind for one in card.sent}
    for section in ("weights", "scores", "text"):
        if reply.kinds[section] and not SECTIONS[section] & named:
            raise RefusedError(f"a reply holds {section}, which the method's card does not name (Card.sent)")
        if reply.kinds[section] and not SECTIONS[section] & named & admitted:
            raise RefusedError(f"it does not allow the {section} of a reply (allow)")
    kinds = {key: one.kind for one in card.list_sent(evaluated=True) for key in one.keys}
    control = {}
    for key, value in reply.control.items():
        kind = kinds.get(key)
        if kind in admitted:
            control[key] = value
        elif kind not in OPTIONAL:
            raise RefusedError(
                f"it does not allow {kind}, which a reply holds (allow)"
                if kind is not None
                else f"a reply holds {key!r}, which the method's card does not name (Sent.keys)"
            )
    metrics = reply.report.get("metrics") if SECTIONS["report"] & named & admitted else None
    return replace(reply, control=control, report={} if metrics is None else {"metrics": metrics})


def _join(state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
    """Do nothing: the machine has checked the request before running it."""
    return state, Message()


class _Evaluate:
    """Play a client's held-out tasks with the global model. The server receives success, its interval, the number of
    tasks and success by category as far as their owner allows; the episodes stay in the owner's folder."""

    def __init__(self, algorithm: BaseAlgorithm[Any]) -> None:
        self._algorithm = algorithm

    def __call__(self, state: Message, message: Message, client: ClientContext[Site]) -> tuple[Message, Message]:
        from fedagentgym.learning.evaluation import evaluate

        runtime, own = self._algorithm.runtime, _get_own(self._algorithm)
        settings, held = runtime.spec.evaluation or EvaluationSettings(), own.open_held(client.id)
        if held.held_out is None:
            return state, Message()
        agent = runtime.load_weights(message.weights)
        alone = settings.model_copy(update={"sets": (), "at_clients": ()})
        file = own.folder / f"client-{client.id}" / f"{client.round:04d}.jsonl"
        seed = derive(runtime.seed, "evaluation")
        found = evaluate(agent, held.held_out, alone, seed=seed, file=file, about={"round": client.round})
        if EVALUATION.kind not in held.settings.allow:
            return state, Message()
        success = found.overall["success"]
        categories = {name: one["success"].mean for name, one in found.categories.items()}
        numbers = {"success": success.mean, "low": success.low, "high": success.high, "tasks": found.tasks}
        return state, Message(control={**numbers, "categories": categories})


# ---- on the server --------------------------------------------------------------------------------------------------


def check_method(card: Card, name: str) -> None:
    """Refuse a method that cannot work with held tasks."""
    if reason := card.held_refusal:
        raise OptionError(
            f"{name} cannot work with tasks that stay with the clients (partition.sampler held): {reason}"
        )


def call_join(algorithm: BaseAlgorithm[Any], backend: Backend, deadline: float | None) -> None:
    """Ask every client whether it takes part; if one does not, the run ends with an error that names it."""
    clients = _open_clients(algorithm, backend, 0, JOIN_CALL, deadline)
    clients.call(JOIN, {client: Message() for client in clients.ids}, quorum=0)
    if clients.failed:
        client, failure = min(clients.failed.items())
        raise FedAgentGymError(f"client {client} does not take part: {failure.message}")


def evaluate_at_clients(
    algorithm: BaseAlgorithm[Any], backend: Backend, round_number: int, state: ServerState, deadline: float | None
) -> dict[str, Any]:
    """The global model on every client's held-out tasks: each client's numbers, the mean, the worst, and the 10th
    percentile over those that answered."""
    clients = _open_clients(algorithm, backend, round_number, EVALUATE_CALL, deadline)
    message = Message(weights=algorithm.policy_parameters(state))
    replies = clients.call(EVALUATE, dict.fromkeys(clients.ids, message), quorum=0)
    by_client = {client: numbers for client, reply in replies.items() if (numbers := _read_numbers(reply))}
    withheld = sum("success" not in reply.control for reply in replies.values())
    failed = len(clients.ids) - len(by_client) - withheld
    found: dict[str, Any] = {"clients": len(by_client), "failed": failed, "withheld": withheld}
    if by_client:
        success = {client: numbers["success"] for client, numbers in by_client.items()}
        worst = min(success, key=lambda client: (success[client], client))
        values = list(success.values())
        found |= {"mean": float(np.mean(values)), "worst": success[worst], "worst_client": worst}
        found |= {f"p{PERCENTILE}": float(np.percentile(values, PERCENTILE))}
        found["each"] = {str(client): numbers for client, numbers in by_client.items()}
    return found


def _open_clients(
    algorithm: BaseAlgorithm[Any], backend: Backend, round_number: int, call: int, deadline: float | None
) -> Clients:
    return Clients(
        backend,
        make_held_operations(algorithm),
        algorithm.client_ids(),
        round_number=round_number,
        seed=algorithm.runtime.seed,
        heads={},
        deadline=deadline,
        next_call=call,
    )


def _read_numbers(reply: Message) -> dict[str, Any]:
    """A client's numbers, each a share of its tasks or their count; nothing if they are malformed."""
    control = dict(reply.control)
    shares = [control.get("success"), *(control[name] for name in ("low", "high") if name in control)]
    if not all(isinstance(share, float | int) and not isinstance(share, bool) and 0 <= share <= 1 for share in shares):
        return {}
    tasks = control.get("tasks", 1)
    if not isinstance(tasks, int) or isinstance(tasks, bool) or not 0 < tasks < 1 << 53:
        return {}
    numbers: dict[str, Any] = {name: control[name] for name in ("success", "low", "high", "tasks") if name in control}
    categories = control.get("categories")
    if isinstance(categories, Mapping) and all(
        type(share) is float and 0 <= share <= 1 for share in categories.values()
    ):
        numbers["categories"] = {clean_text(name, 100): share for name, share in categories.items()}
    return numbers
