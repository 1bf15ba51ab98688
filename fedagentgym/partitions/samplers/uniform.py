"""Uniform: every client gets L tasks; all clients have the same distribution."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import StreamBatch, stream
from fedagentgym.partitions.assignment import (
    Assignment,
    assign_balanced,
    compute_offsets,
    iter_batches,
    sample_distinct,
)
from fedagentgym.partitions.division import Axis, Compat, Sampler, check_overlap, check_pool_size
from fedagentgym.partitions.table import TaskTable


class Uniform(Sampler):
    """L tasks per client, without repeats inside a client.

    By default the whole pool is divided in equal shares, and no two clients share a task. With `tasks_per_client` every client
    draws independently, so clients may share tasks. With `overlap=r` floor(r) or ceil(r) clients hold every used task;
    `disjoint=True` is overlap 1. `compat="fedagent"` gives the contiguous windows of the FedAgent authors' code, in which only
    neighbours share tasks.
    """

    axes: ClassVar[frozenset[Axis]] = frozenset()

    tasks_per_client: int | None = Field(
        None, ge=1, description="tasks of every client; by default an equal share of the pool"
    )
    disjoint: bool = Field(default=False, description="no two clients share a task")
    overlap: float | None = Field(
        default=None,
        ge=1,
        description="clients that hold each used task, at most all; by default 1, or left to chance if tasks_per_client is given",
    )
    compat: Compat | None = Field(default=None, description="fedagent: contiguous windows, as in the FedAgent code")

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        tasks = self.tasks_per_client
        if self.overlap is not None and self.overlap > clients:
            raise OptionError(f"overlap must be at most {clients:,}, the number of clients, got {self.overlap:g}")
        if tasks is None:
            share = int(float(self.overlap or 1.0) * len(table)) // clients
            if not share:
                raise OptionError(f"{len(table):,} tasks are too few for {clients:,} clients: use fewer clients")
            tasks = min(share, len(table))
        if self.compat == "fedagent":
            from fedagentgym.partitions.compat import assign_windows

            return assign_windows(len(table), clients, tasks)
        if not self.disjoint and self.overlap is None and self.tasks_per_client is not None:
            check_pool_size(tasks, table)
            drawn = []
            for part in iter_batches(clients, tasks):
                streams, every = StreamBatch(seed, "uniform", first=part.start, count=len(part)), np.arange(len(part))
                drawn.append(
                    sample_distinct(streams, every, np.full(len(part), len(table)), np.full(len(part), tasks))[1]
                )
            return Assignment(compute_offsets(np.full(clients, tasks)), np.concatenate(drawn))
        if self.disjoint and self.overlap not in (None, 1.0):
            raise OptionError(
                f"disjoint=True means overlap 1, but overlap={self.overlap:g} is asked for: give one of them"
            )
        overlap = 1.0 if self.disjoint else float(self.overlap or 1.0)
        check_pool_size(tasks, table)
        used = check_overlap(table, clients=clients, tasks=tasks, overlap=overlap)
        source = stream(seed, "uniform", "deal")
        items = np.sort(source.choice(len(table), used))
        return assign_balanced(np.full(clients, tasks, dtype=np.int64), used, source).renumber(items)
