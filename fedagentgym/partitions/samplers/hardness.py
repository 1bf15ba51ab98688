"""Hardness: clients hold different numbers of solvable tasks (Algorithm 4 of the FedAgent paper)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedagentgym.base.errors import DataError, OptionError
from fedagentgym.base.streams import StreamBatch
from fedagentgym.partitions.assignment import Assignment, compute_total, iter_batches, sample_distinct
from fedagentgym.partitions.division import Axis, Compat, Sampler, check_pool_size
from fedagentgym.partitions.samplers.coverage import Bounds, sample_coverage, validate_bounds
from fedagentgym.partitions.table import TaskTable


class Hardness(Sampler):
    """Tasks that a reference policy solves are distributed as `coverage` distributes tasks. Each client is then filled up to L
    tasks with unsolved ones, so all sizes are equal. Labels are required."""

    axes: ClassVar[frozenset[Axis]] = frozenset({"hardness"})
    needs_labels: ClassVar[bool] = True

    xi: float = Field(gt=0, description="concentration of the solved counts: 256 nearly equal, 1 strongly spread")
    tasks_per_client: int = Field(ge=1, description="tasks of every client")
    min_solved: int = Field(default=0, ge=0, description="fewest solved tasks of a client")
    mean_solved: float | None = Field(
        None, ge=0, description="mean solved tasks per client; by default half of tasks_per_client"
    )
    max_solved: int | None = Field(
        default=None, ge=0, description="most solved tasks of a client; by default tasks_per_client"
    )
    overlap: float | None = Field(
        default=None,
        gt=0,
        description="mean number of clients that hold a solved task; by default clients * mean_solved / solved tasks",
    )
    compat: Compat | None = Field(
        default=None, description="fedagent: the sampling of the FedAgent authors' code, with its seed and defects"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        if table.solved is None:
            raise DataError(
                "hardness needs labels of which tasks are solved: make them with `fedagentgym label`, and pass labels=FILE"
            )
        check_pool_size(self.tasks_per_client, table)
        solved, unsolved = np.flatnonzero(table.solved), np.flatnonzero(~table.solved)
        if self.compat == "fedagent":
            from fedagentgym.partitions.compat import assign_by_hardness

            return assign_by_hardness(solved, unsolved, clients, self.tasks_per_client, self.xi)
        bounds = self.compute_bounds(len(solved), clients)
        placed = sample_coverage(len(solved), clients, bounds, self.xi, seed, "hardness").renumber(solved)  # line 1
        missing = self.tasks_per_client - placed.sizes
        if int(missing.max(initial=0)) > len(unsolved):
            needy = int(missing.argmax())
            raise OptionError(
                f"client {needy} needs {int(missing[needy]):,} unsolved tasks to reach {self.tasks_per_client:,}, but only "
                f"{len(unsolved):,} are unsolved: lower tasks_per_client or raise min_solved to"
                f" {self.tasks_per_client - len(unsolved):,}"
            )
        parts = []
        for part in iter_batches(clients, self.tasks_per_client):  # lines 2-5, each client from its own stream
            streams = StreamBatch(seed, "hardness", "fill", first=part.start, count=len(part))
            every, wanted = np.arange(len(part)), missing[part.start : part.stop]
            owner, number = sample_distinct(streams, every, np.full(len(part), len(unsolved)), wanted)
            begin, end = placed.offsets[part.start], placed.offsets[part.stop]
            owners = np.concatenate([np.repeat(every, placed.sizes[part.start : part.stop]), owner])
            items = np.concatenate([placed.items[begin:end], unsolved[number]])
            parts.append(Assignment.from_pairs(owners, items, len(part)))
        return Assignment.concatenate(parts)

    def compute_bounds(self, solved: int, clients: int) -> Bounds:
        tasks = self.tasks_per_client
        mean = self.mean_solved if self.mean_solved is not None else tasks / 2
        high = self.max_solved if self.max_solved is not None else tasks
        if high > tasks:
            raise OptionError(f"max_solved is {high:,}, more than the {tasks:,} tasks of a client: lower it")
        if high > solved:
            raise OptionError(
                f"a client may hold up to {high:,} solved tasks, but the labels count {solved:,} as solved: "
                f"set max_solved to at most {solved:,} or take labels of a stronger policy"
            )
        total = compute_total(clients, mean, self.overlap, solved)
        return validate_bounds(Bounds(total, self.min_solved, mean, high), solved, clients, "solved tasks")
