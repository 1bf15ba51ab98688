"""Clients' reports: the scores of their trained models, and how the server validates replies.

A client that trains a model of its own evaluates it before it is averaged, on its own mixture of held-out tasks: the
distribution of its tasks over categories. The success in every category (or evaluation set of that name) is weighted by the
client's shares; categories without a played held-out task are left out, and `coverage` is the share of the client's tasks that
remains.

Replies come from other machines. Parameters are checked by the form of their message. The number of examples determines a
client's weight, and counts are added up against budgets: a reply with impossible numbers is refused and is one of the round's
failures. Other metrics and episodes are only displayed: malformed ones are left out, `report/refused` counts them by client, and
the update is still used. The remaining numbers can be false, but they are well formed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.algorithms.runtime import Runtime, Site
from fedagentgym.base.errors import DataError, unknown_name_error
from fedagentgym.base.streams import derive
from fedagentgym.federation.algorithm import Clients, Failure
from fedagentgym.federation.message import Message
from fedagentgym.learning.evaluation import SetsEvaluation, evaluate_sets
from fedagentgym.learning.state import COSTS, SUMMED_METRICS, mean_metrics
from fedagentgym.learning.trajectory import format_line, from_plain, parse_lines

if TYPE_CHECKING:
    from fedagentgym.agents.agent import TokenAgent
    from fedagentgym.algorithms.card import Work
    from fedagentgym.partitions.client_split import ClientSplit

PREFIX = "local/"
PERCENTILE = 10
_REPORTED = ("success", "score")


def evaluate_local_model(runtime: Runtime, site: Site, agent: TokenAgent, round_number: int) -> dict[str, float]:
    """The scores of a client's current model on the held-out tasks, as the client reports them.

    The tasks, seeds and temperature are those of the global model's evaluation. Empty in rounds without evaluation.
    """
    settings = runtime.spec.evaluation if runtime.sites.plays_sets else None
    if settings is None or "held_out" not in settings.at_clients or not settings.is_due(round_number, runtime.rounds):
        return {}
    found = evaluate_sets(agent, runtime.evaluation_sets, settings, seed=derive(runtime.seed, "evaluation"))
    overall = {PREFIX: found.overall} | {f"{PREFIX}{name}/": one.overall for name, one in found.sets.items() if name}
    numbers = {
        place + name: estimate.mean
        for place, estimates in overall.items()
        for name, estimate in estimates.items()
        if name in _REPORTED or name.startswith("reward/")
    }
    own, coverage = measure_mixture(site.env.pool.categories, found.measure_categories())
    if coverage:
        numbers |= {f"{PREFIX}own": own, f"{PREFIX}coverage": coverage}
    return numbers


def measure_mixture(tasks: Mapping[str, int], success: Mapping[str, float]) -> tuple[float, float]:
    """The success in a mixture of categories, and the share of the mixture that was measured."""
    covered = {category: count for category, count in tasks.items() if category in success}
    total = sum(covered.values())
    if not total:
        return 0.0, 0.0
    earned = sum(count * success[category] for category, count in covered.items())
    return earned / total, total / sum(tasks.values())


def summarise_local_models(clients: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """The worst value and the 10th percentile over the clients whose models were evaluated."""
    summary: dict[str, float] = {}
    for name in (f"{PREFIX}success", f"{PREFIX}own"):
        values = [numbers[name] for numbers in clients.values() if name in numbers]
        if values:
            summary |= {f"{name}/worst": min(values), f"{name}/p{PERCENTILE}": float(np.percentile(values, PERCENTILE))}
    return summary


def evaluate_mixtures(found: SetsEvaluation, client_split: ClientSplit) -> dict[str, Any]:
    """The global model on every client's own mixture: the mean over clients, the worst, and the 10th percentile."""
    success = found.measure_categories()
    shares = count_categories(client_split)
    names = client_split.table.names
    known = np.array([name in success for name in names])
    worth = np.array([success.get(name, 0.0) for name in names])
    covered = shares[:, known].sum(axis=1)
    covered_clients = np.flatnonzero(covered > 0)
    if not covered_clients.size:
        return {"clients": 0}
    own = (shares[covered_clients] @ worth) / covered[covered_clients]
    worst = int(np.argmin(own))
    return {
        "clients": int(covered_clients.size),
        "coverage": float(covered[covered_clients].sum() / shares[covered_clients].sum()),
        "mean": float(own.mean()),
        "worst": float(own[worst]),
        "worst_client": int(covered_clients[worst]),
        f"p{PERCENTILE}": float(np.percentile(own, PERCENTILE)),
    }


def count_categories(client_split: ClientSplit) -> NDArray[np.float64]:
    """The number of tasks of each category of every client."""
    table, assignment = client_split.table, client_split.assignment
    clients, categories = len(client_split), len(table.names)
    cells = assignment.owners * categories + table.codes[assignment.items]
    counts = np.bincount(cells, minlength=clients * categories).astype(np.float64)
    return counts.reshape(clients, categories)


MAX_METRICS = 256
MAX_NAME_LENGTH = 100
MAX_VALUE = 1e300
MAX_COUNTED = 1 << 53
RESERVED = "privacy/"
"""Prefix of numbers that follow from the configuration, which no client can report."""
REFUSED = "report/refused"
"""The metric that counts what was left out of a client's report."""


class Metrics(dict[str, float]):
    """Numbers by name; the error for an unknown name gives the nearest one."""

    def __missing__(self, name: str) -> float:
        raise unknown_name_error("metric", name, self)


class Report(NamedTuple):
    """A client's report: numbers by name, and the episodes that it shows."""

    metrics: Metrics
    episodes: list[str]


def read_report(client: int, reply: Message, asked: Work | None, samples: int = 0) -> Report | Failure:
    """The checked report of a reply. A count above that of the work `asked` refuses the reply; at most `samples` episodes are
    kept."""
    metrics, episodes = reply.report.get("metrics", {}), reply.report.get("episodes", [])
    metrics, episodes = (
        (metrics if isinstance(metrics, Mapping) else {}),
        (episodes if isinstance(episodes, list) else []),
    )
    for name in SUMMED_METRICS & metrics.keys():
        value, most = metrics[name], getattr(asked, name, MAX_COUNTED)
        if not (_is_metric(name, value) and 0 <= value <= most and value == int(value)):
            problem = f"{name!r} is {str(value)[:40]!r}, it can be a whole number from 0 to {most:,}"
            return Failure(client, "refused", f"its report: {problem}")
    named = islice(metrics.items(), MAX_METRICS)
    kept = Metrics({name: float(value) for name, value in named if _is_metric(name, value)})
    shown = []
    for one in episodes[:samples]:  # as lines; values that cannot be read as an episode are left out
        with contextlib.suppress(DataError):
            if isinstance(one, Mapping):
                line = format_line(from_plain(one), {"client": client})
                (_,) = parse_lines([line], "")
                shown.append(line)
    if left_out := len(metrics) - len(kept) + len(episodes) - len(shown):
        kept[REFUSED] = float(left_out)
    return Report(kept, shown)


def _is_metric(name: object, value: object) -> bool:
    """Return whether this is a metric that a client may report; an epsilon, for example, follows from the configuration."""
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        return False
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_VALUE:
        return False
    return not name.startswith(RESERVED) and name != REFUSED


def read_reports(
    replies: Mapping[int, Message], asked: Mapping[int, Work], clients: Clients
) -> dict[int, dict[str, float]]:
    """The numbers that the clients of a call report; those with impossible counts are refused."""
    found = {client: read_report(client, reply, asked[client]) for client, reply in replies.items()}
    clients.refuse([one for one in found.values() if isinstance(one, Failure)])
    return {client: one.metrics for client, one in found.items() if isinstance(one, Report)}


def sum_costs(reported: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the costs of all clients together, as far as they report them."""
    return mean_metrics([{name: one[name] for name in COSTS if name in one} for one in reported])


def is_idle(metrics: Mapping[str, float]) -> bool:
    """Return whether a client reports that none of its groups of episodes had a difference in rewards to learn from."""
    return "groups" in metrics and metrics.get("groups/constant", 0.0) >= metrics["groups"]
