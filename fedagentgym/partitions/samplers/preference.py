"""Preference: clients prefer different categories (Algorithm 2 of the FedAgent paper).

`preference_dirichlet` draws categories as the authors' later code does. `preference_coverage` also draws sizes by Algorithm 3.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import StreamBatch, log_gamma_quantile
from fedagentgym.partitions.assignment import (
    Assignment,
    compute_offsets,
    iter_batches,
    redistribute_overflow,
    sample_beta_sizes,
    sample_category_counts,
    sample_distinct,
    softmax,
)
from fedagentgym.partitions.division import Axis, Compat, Sampler, check_pool_size
from fedagentgym.partitions.samplers.coverage import Coverage
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Preference(Sampler):
    """Every client adds Gaussian noise of standard deviation omega to the log-probabilities of the global category mixture.

    `anchor="log"` adds the noise to log p_c, so that omega 0 gives the global mixture, as the paper's text says. `"logit"` adds
    it to log(p_c / (1 - p_c)), as the paper's pseudo code says, which favours large categories even at omega 0.
    """

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture"})

    omega: float = Field(
        ge=0, description="standard deviation of the noise on the log-probabilities: 0.1 mild, 0.9 strong"
    )
    tasks_per_client: int = Field(ge=1, description="tasks of every client")
    anchor: Literal["log", "logit"] = Field(
        default="log", description="the noise is added to log-probabilities (log) or log-odds (logit)"
    )
    compat: Compat | None = Field(
        default=None, description="fedagent: the sampling of the FedAgent authors' code, with its seeds"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        check_pool_size(self.tasks_per_client, table)
        if self.compat == "fedagent":
            from fedagentgym.partitions.compat import assign_by_preference

            return assign_by_preference(table, clients, self.tasks_per_client, self.omega)
        anchors = self.compute_anchors(table.counts)  # line 1
        parts = []
        for part in iter_batches(clients, self.tasks_per_client + len(anchors)):  # line 2
            streams = StreamBatch(seed, "preference", first=part.start, count=len(part))
            weights = softmax(anchors + self.omega * streams.normal(len(anchors)))  # line 3
            parts.append(sample_by_category(table, streams, weights, np.full(len(part), self.tasks_per_client)))
        return Assignment.concatenate(parts)

    def compute_anchors(self, counts: Ints) -> Floats:
        """The anchor l_c of every category, to which the noise is added."""
        share = counts / counts.sum()
        if self.anchor == "log":
            return np.asarray(np.log(share), dtype=np.float64)
        if len(counts) < 2:
            raise OptionError("anchor='logit' needs at least two categories, the pool has one: use anchor='log'")
        return np.asarray(np.log(share / (1.0 - share)), dtype=np.float64)


def sample_by_category(table: TaskTable, streams: StreamBatch, weights: Ints, tasks: Ints) -> Assignment:
    """Draw the counts of the categories, limited by their sizes, then distinct tasks inside each category (lines 4-6)."""
    counts = sample_category_counts(streams, tasks, weights)
    counts = redistribute_overflow(streams, counts, weights, table.counts)
    clients, categories = counts.shape
    owner = np.repeat(np.arange(clients), categories)
    group, number = sample_distinct(streams, owner, np.tile(table.counts, clients), counts.reshape(-1))
    order, starts = table.by_category
    items = order[starts[group % categories] + number]
    if categories == 1:
        return Assignment(compute_offsets(tasks), items)
    return Assignment.from_pairs(owner[group], items, clients)


class PreferenceDirichlet(Sampler):
    """Client mixtures q ~ Dirichlet(p * (1 - omega) / omega). Their mean is the global mixture p, and their total variance is
    omega * (1 - sum p_c^2), so omega is a share of the largest variance. Its scale differs from omega of `preference`."""

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture"})

    omega: float = Field(
        gt=0,
        lt=1,
        description="skew, as a share of the largest possible variance; near 0 clients are alike, near 1 each has one category",
    )
    tasks_per_client: int = Field(ge=1, description="tasks of every client")

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        check_pool_size(self.tasks_per_client, table)
        share = table.counts / table.counts.sum()
        alpha = share * (1.0 - self.omega) / self.omega
        parts = []
        for part in iter_batches(clients, self.tasks_per_client + 2 * len(alpha)):
            streams = StreamBatch(seed, "preference_dirichlet", first=part.start, count=len(part))
            uniform = streams.uniform(2 * len(alpha))
            shapes = np.broadcast_to(alpha, (len(part), len(alpha)))
            weights = softmax(log_gamma_quantile(shapes, uniform[:, : len(alpha)], uniform[:, len(alpha) :]))
            parts.append(sample_by_category(table, streams, weights, np.full(len(part), self.tasks_per_client)))
        return Assignment.concatenate(parts)


class PreferenceCoverage(Sampler):
    """Clients differ in two axes: omega controls the mixtures, xi the sizes. The number of clients that hold a task is left to
    chance, since the preferences already determine which clients can hold it."""

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture", "sizes"})

    omega: float = Field(
        ge=0, description="standard deviation of the noise on the log-probabilities: 0.1 mild, 0.9 strong"
    )
    xi: float = Field(gt=0, description="concentration of the sizes: 256 nearly equal, 1 strongly spread")
    mean_tasks: float = Field(gt=0, description="mean tasks per client")
    min_tasks: int | None = Field(
        default=None, ge=0, description="fewest tasks of a client; by default a fifth of the mean, at least 1"
    )
    max_tasks: int | None = Field(
        None, ge=1, description="most tasks of a client; by default three times the mean, or the pool if that is less"
    )
    anchor: Literal["log", "logit"] = Field(
        default="log", description="the noise is added to log-probabilities (log) or log-odds (logit)"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        sizing = Coverage(xi=self.xi, mean_tasks=self.mean_tasks, min_tasks=self.min_tasks, max_tasks=self.max_tasks)
        bounds = sizing.compute_bounds(len(table), clients)
        sizes = sample_beta_sizes(seed, "preference_coverage", clients, *bounds, self.xi)
        mixing = Preference(omega=self.omega, anchor=self.anchor, tasks_per_client=1)
        anchors = mixing.compute_anchors(table.counts)
        parts = []
        for part in iter_batches(clients, int(bounds.mean) + 1 + len(anchors)):
            streams = StreamBatch(seed, "preference_coverage", first=part.start, count=len(part))
            weights = softmax(anchors + self.omega * streams.normal(len(anchors)))
            parts.append(sample_by_category(table, streams, weights, sizes[part.start : part.stop]))
        return Assignment.concatenate(parts)
