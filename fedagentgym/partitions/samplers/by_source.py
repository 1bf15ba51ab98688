"""By source: whole data sets to whole clients (FedMOA's hard split)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedagentgym.base.errors import OptionError, join_names, unknown_name_error
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.samplers.sampler import Axis, Sampler
from fedagentgym.partitions.table import TaskTable


class BySource(Sampler):
    """Every client holds tasks of one category only; the clients of a category share it in equal parts without overlap.

    `sources={"algebra": 5, "geometry": 5}` gives five clients to each; by default all categories get equally many.
    `"algebra+series": 5` gives five clients the tasks of both. Clients are numbered source by source, in the order of the
    names.
    """

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture", "sizes"})

    sources: dict[str, int] | None = Field(
        default=None,
        description="clients of each category, or of several (a+b: 2); None: equally many for all",
    )
    tasks_per_client: int | None = Field(
        None, ge=1, description="tasks of every client; None: an equal part of its category"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        lists: list[list[int]] = []
        for name, sharers in sorted(self.allocate_clients(table, clients).items()):
            codes = [table.names.index(category) for category in split_source(name, table.names)]
            members = np.flatnonzero(np.isin(table.codes, codes))
            tasks = self.tasks_per_client or members.size // sharers
            if not 0 < tasks * sharers <= members.size:
                raise OptionError(
                    f"{sharers:,} clients x {max(tasks, 1):,} tasks of {name!r} need {sharers * max(tasks, 1):,} tasks, it has "
                    f"{members.size:,}: lower tasks_per_client or give it fewer clients"
                )
            order = members[stream(seed, "by_source", name).permutation(members.size)]
            lists.extend(order[: tasks * sharers].reshape(sharers, tasks).tolist())
        return Assignment.from_lists(lists)

    def count_clients(self, table: TaskTable) -> int | None:
        return None if self.sources is None else sum(self.sources.values())

    def allocate_clients(self, table: TaskTable, clients: int) -> dict[str, int]:
        """How many clients each category gets."""
        if self.sources is None:
            each, rest = divmod(clients, len(table.names))
            if rest or not each:
                raise OptionError(
                    f"{clients:,} clients cannot be divided equally among {len(table.names)} categories "
                    f"({join_names(table.names)}): say how many each gets with sources="
                )
            return dict.fromkeys(table.names, each)
        held: set[str] = set()
        for name, count in self.sources.items():
            for category in split_source(name, table.names):
                if category not in table.names:
                    raise unknown_name_error("category", category, table.names)
                if category in held:
                    raise OptionError(f"sources names the category {category!r} twice")
                held.add(category)
            if count < 1:
                raise OptionError(f"sources gives {count} clients to {name!r}: at least 1 is needed, or leave it out")
        if sum(self.sources.values()) != clients:
            raise OptionError(f"sources names {sum(self.sources.values()):,} clients, {clients:,} are asked for")
        return dict(self.sources)


def split_source(source: str, categories: Sequence[str]) -> list[str]:
    """The categories that an entry of `sources` stands for: itself where it is one (a name may have a plus), else its parts."""
    return [source] if source in categories else [part.strip() for part in source.split("+")]
