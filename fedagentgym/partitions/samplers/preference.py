"""Preference: clients prefer different categories (Algorithm 2 of the FedAgent paper)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import StreamBatch
from fedagentgym.partitions.arithmetic.draws import (
    iter_batches,
    redistribute_overflow,
    sample_category_counts,
    sample_distinct,
    softmax,
)
from fedagentgym.partitions.assignment import Assignment, compute_offsets
from fedagentgym.partitions.samplers.sampler import Axis, Compat, Sampler, check_pool_size
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Preference(Sampler):
    """Every client moves the global mixture of categories by Gaussian noise of standard deviation omega, in logarithms.

    `anchor="log"` starts from log p_c and keeps the global mixture at omega 0 (the paper's prose); `"logit"` starts from
    log(p_c / (1 - p_c)), literally the pseudo code, which favours large categories already at omega 0.
    """

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture"})

    omega: float = Field(
        ge=0, description="standard deviation of the noise on the log-probabilities: 0.1 mild, 0.9 strong"
    )
    tasks_per_client: int = Field(ge=1, description="tasks of every client")
    anchor: Literal["log", "logit"] = Field(default="log", description="what the noise is added to")
    compat: Compat | None = Field(
        default=None, description="'fedagent': the authors' published sampling, seeds and all"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        check_pool_size(clients, self.tasks_per_client, table)
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
        """l_c of every category."""
        share = counts / counts.sum()
        if self.anchor == "log":
            return np.asarray(np.log(share), dtype=np.float64)
        if len(counts) < 2:
            raise OptionError("anchor='logit' needs at least two categories, the pool has one: use anchor='log'")
        return np.asarray(np.log(share / (1.0 - share)), dtype=np.float64)


def sample_by_category(table: TaskTable, streams: StreamBatch, weights: Ints, tasks: Ints) -> Assignment:
    """Lines 4-6: category counts, cut to what each category has, then distinct tasks inside each category."""
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
