"""Natural: clients are given by the tasks, for example as the users to whom the tasks belong."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.samplers.sampler import Axis, Sampler
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]


class Natural(Sampler):
    """One client for every value of a field, or for every `group_size` values; in the order of the values.

    Where fewer clients are asked for than there are, they are drawn at random. `shuffle` draws which values form a group;
    otherwise neighbours do.
    """

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture", "sizes", "hardness"})

    by: str = Field(description="the field of a task whose values are the clients, for example user")
    group_size: int = Field(default=1, ge=1, description="values that form one client")
    remainder: Literal["smaller", "bigger", "drop", "refuse"] = Field(
        default="smaller",
        description="values that fill no group: one smaller group, spread over the others, left out, or an error",
    )
    shuffle: bool = Field(default=False, description="values form groups at random, not in their order")
    min_tasks: int = Field(default=1, ge=1, description="values with fewer tasks are left out")

    def count_clients(self, table: TaskTable) -> int:
        codes, names = table.find_labels(self.by)
        kept = np.bincount(codes, minlength=len(names)) >= self.min_tasks
        return int(self._size_groups(int(kept.sum())).size)

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        codes, names = table.find_labels(self.by)
        kept = np.flatnonzero(np.bincount(codes, minlength=len(names)) >= self.min_tasks)
        sizes = self._size_groups(kept.size)
        if clients > sizes.size:
            raise OptionError(
                f"{clients:,} clients are asked for, and the {kept.size:,} values of {self.by!r} make {sizes.size:,}: "
                f"use at most {sizes.size:,}, or leave the number of clients out to have them all"
            )
        if self.shuffle:
            kept = kept[stream(seed, "natural", "groups").permutation(kept.size)]
        chosen = np.sort(stream(seed, "natural", "clients").choice(sizes.size, clients))
        client_of_group = np.full(sizes.size, -1, dtype=np.int64)
        client_of_group[chosen] = np.arange(clients)
        client_of_value = np.full(len(names), -1, dtype=np.int64)
        client_of_value[kept[: int(sizes.sum())]] = client_of_group[np.repeat(np.arange(sizes.size), sizes)]
        owner = client_of_value[codes]
        return Assignment.from_pairs(owner[owner >= 0], np.flatnonzero(owner >= 0), clients)

    def _size_groups(self, values: int) -> Ints:
        """How many values every group has."""
        groups, rest = divmod(values, self.group_size)
        if not values or (not groups and self.remainder != "smaller"):
            raise OptionError(
                f"{values:,} values of {self.by!r} with at least {self.min_tasks:,} tasks make no group of {self.group_size:,}: "
                "lower group_size or min_tasks"
            )
        sizes = np.full(groups, self.group_size, dtype=np.int64)
        if rest and self.remainder == "refuse":
            raise OptionError(
                f"{values:,} values of {self.by!r} leave {rest:,} beside groups of {self.group_size:,}: choose another "
                "group_size, or remainder='smaller', 'bigger' or 'drop'"
            )
        if rest and self.remainder == "bigger":
            return np.full(groups, values // groups) + (np.arange(groups) < values % groups)
        return np.append(sizes, rest) if rest and self.remainder == "smaller" else sizes
