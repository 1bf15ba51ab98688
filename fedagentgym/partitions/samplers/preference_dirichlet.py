"""Preference by a Dirichlet draw, as in the authors' later code."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedagentgym.base.streams import StreamBatch, log_gamma_quantile
from fedagentgym.partitions.arithmetic.draws import iter_batches, softmax
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.samplers.preference import sample_by_category
from fedagentgym.partitions.samplers.sampler import Axis, Sampler, check_pool_size
from fedagentgym.partitions.table import TaskTable


class PreferenceDirichlet(Sampler):
    """q ~ Dirichlet(p * (1 - omega) / omega): the mean is the global mixture p, and the total variance of q is exactly
    omega * (1 - sum p_c^2), so omega is the dispersion itself. Its scale differs from that of `preference`."""

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture"})

    omega: float = Field(
        gt=0, lt=1, description="share of the greatest variance: near 0 alike, near 1 one category each"
    )
    tasks_per_client: int = Field(ge=1, description="tasks of every client")

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        check_pool_size(clients, self.tasks_per_client, table)
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
