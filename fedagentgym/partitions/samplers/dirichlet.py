"""Label skew by Dirichlet draws: the classic split of federated classification, and its equal-sized form."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import StreamBatch, log_gamma_quantile, on_grid, stream
from fedagentgym.partitions.assignment import Assignment, deal_by_label, sample_category_counts, softmax
from fedagentgym.partitions.division import LabelSampler, check_disjoint
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]


class Dirichlet(LabelSampler):
    """Disjoint clients with skewed labels; a small beta means few labels per client.

    By default every label's tasks are divided in shares ~ Dirichlet(beta) over the clients, whose sizes differ (FedGRPO: beta
    0.1). With `equal_size=True` every client has a mixture ~ Dirichlet(beta) over the labels and draws L tasks from it, as
    long as the labels have tasks left (PubSwap: beta 0.3 and 0.1).
    """

    beta: float = Field(gt=0, description="concentration (also alpha): 0.1 strongly skewed, 100 nearly alike")
    equal_size: bool = Field(default=False, description="all clients hold equally many tasks")
    tasks_per_client: int | None = Field(
        default=None, ge=1, description="with equal_size: tasks of every client; by default pool / clients"
    )
    min_tasks: int = Field(
        default=1,
        ge=0,
        description="without equal_size: fewest tasks of a client; smaller clients take tasks from the largest",
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        labels, names = table.find_labels(self.label)
        totals = np.bincount(labels, minlength=len(names)).astype(np.int64)
        if self.equal_size:
            tasks = self.tasks_per_client or len(table) // clients
            check_disjoint(table, clients=clients, tasks=max(tasks, 1), name="tasks_per_client")
            counts = _fill_equally(clients, tasks, totals, self.beta, seed)
        else:
            if self.tasks_per_client is not None:
                raise OptionError(
                    "dirichlet takes tasks_per_client only with equal_size=True: without it the whole pool is divided"
                )
            check_disjoint(table, clients=clients, tasks=self.min_tasks, name="min_tasks")
            counts = np.zeros((clients, len(names)), dtype=np.int64)
            for number, name in enumerate(names):
                logs = stream(seed, "dirichlet", name).log_gamma(np.full(clients, self.beta))
                weights = np.exp(logs - logs.max())
                ends = np.cumsum(on_grid(weights / weights.sum()))
                counts[:, number] = np.diff(np.floor(ends / ends[-1] * totals[number]).astype(np.int64), prepend=0)
            _enforce_minimum(counts, self.min_tasks)
        return deal_by_label(labels, names, counts, seed, "dirichlet")


def _fill_equally(clients: int, tasks: int, totals: Ints, beta: float, seed: int) -> Ints:
    """Draw the number of tasks of each label for every client from its mixture, as long as the labels have tasks left."""
    streams = StreamBatch(seed, "dirichlet", "equal", count=clients)
    uniform = streams.uniform(2 * len(totals))
    shapes = np.full((clients, len(totals)), beta)
    prior = softmax(log_gamma_quantile(shapes, uniform[:, : len(totals)], uniform[:, len(totals) :]))
    source = stream(seed, "dirichlet", "rivals")
    counts, room, left = np.zeros_like(prior), totals.copy(), np.full(clients, tasks)
    while int(left.sum()):
        weights = np.where(room > 0, prior, 0)
        weights = np.where(weights.sum(axis=1, keepdims=True) > 0, weights, room)
        won = sample_category_counts(streams, left, weights)
        for label in np.flatnonzero(won.sum(axis=0) > room):  # too few tasks for all draws: chance decides
            rivals = np.repeat(np.arange(clients), won[:, label])
            lucky = rivals[source.choice(rivals.size, int(room[label]))]
            won[:, label] = np.bincount(lucky, minlength=clients)
        counts, room, left = counts + won, room - won.sum(axis=0), left - won.sum(axis=1)
    return counts


def _enforce_minimum(counts: Ints, minimum: int) -> None:
    """Move tasks to clients with too few, one by one: each is of the most frequent label of the client that is then largest."""
    sizes = counts.sum(axis=1)
    rich = [(-int(size), client) for client, size in enumerate(sizes.tolist()) if size > minimum]
    heapq.heapify(rich)
    for client in np.flatnonzero(sizes < minimum).tolist():
        for _ in range(minimum - int(sizes[client])):
            size, donor = heapq.heappop(rich)
            label = int(counts[donor].argmax())
            counts[donor, label] -= 1
            counts[client, label] += 1
            if -size - 1 > minimum:
                heapq.heappush(rich, (size + 1, donor))
