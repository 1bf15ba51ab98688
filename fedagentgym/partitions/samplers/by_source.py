"""By source: whole data sets to whole clients (FedMOA's hard split)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedagentgym.base.errors import OptionError, listed, unknown
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.samplers.sampler import Axis, Sampler
from fedagentgym.partitions.table import TaskTable


class BySource(Sampler):
    """Every client holds tasks of one category only; the clients of a category share it in equal parts without overlap.

    `sources={"algebra": 5, "geometry": 5}` gives five clients to each; by default all categories get equally many.
    Clients are numbered category by category, in the order of the categories' names.
    """

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture", "sizes"})

    sources: dict[str, int] | None = Field(
        default=None, description="clients of each category; None: equally many for all"
    )
    tasks_per_client: int | None = Field(
        None, ge=1, description="tasks of every client; None: an equal part of its category"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        lists: list[list[int]] = []
        for name, sharers in sorted(self.shares(table, clients).items()):
            members = np.flatnonzero(table.codes == table.names.index(name))
            tasks = self.tasks_per_client or members.size // sharers
            if not 0 < tasks * sharers <= members.size:
                raise OptionError(
                    f"{sharers:,} clients x {max(tasks, 1):,} tasks of {name!r} need {sharers * max(tasks, 1):,} tasks, it has "
                    f"{members.size:,}: lower tasks_per_client or give it fewer clients"
                )
            order = members[stream(seed, "by_source", name).permutation(members.size)]
            lists.extend(order[: tasks * sharers].reshape(sharers, tasks).tolist())
        return Assignment.from_lists(lists)

    def shares(self, table: TaskTable, clients: int) -> dict[str, int]:
        """How many clients each category gets."""
        if self.sources is None:
            each, rest = divmod(clients, len(table.names))
            if rest or not each:
                raise OptionError(
                    f"{clients:,} clients cannot be divided equally among {len(table.names)} categories "
                    f"({listed(table.names)}): say how many each gets with sources="
                )
            return dict.fromkeys(table.names, each)
        for name, count in self.sources.items():
            if name not in table.names:
                raise unknown("category", name, table.names)
            if count < 1:
                raise OptionError(f"sources gives {count} clients to {name!r}: at least 1 is needed, or leave it out")
        if sum(self.sources.values()) != clients:
            raise OptionError(f"sources names {sum(self.sources.values()):,} clients, {clients:,} are asked for")
        return dict(self.sources)
