"""Samplers whose clients follow from the tasks themselves, or from the machines that hold them.

`natural` makes a client of each value of a field, `by_source` gives each client tasks of one category or group of categories, and
`held` leaves tasks on the clients' machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt, field_validator

from fedagentgym.base.errors import OptionError, join_names, unknown_name_error
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.division import Axis, Sampler
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]


class Natural(Sampler):
    """One client for every value of a field, or for every `group_size` values, in the order of the values.

    If fewer clients are requested than the values give, they are drawn at random. With `shuffle` the values of a group are drawn
    at random; otherwise neighbouring values form a group.
    """

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture", "sizes", "hardness"})

    by: str = Field(description="the field of a task whose values are the clients, for example user")
    group_size: int = Field(default=1, ge=1, description="values that form one client")
    remainder: Literal["smaller", "bigger", "drop", "refuse"] = Field(
        default="smaller",
        description="the values left over form a smaller group, are spread over the groups, are left out, or are an error",
    )
    shuffle: bool = Field(default=False, description="form groups of values at random instead of in their order")
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
                f"use at most {sizes.size:,}, or give no number of clients to get all of them"
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
        """Return how many values every group has."""
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


class Held(Sampler):
    """The clients' own machines hold the tasks. Clients get no tasks of this pool; only roles are drawn from it."""

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        return Assignment.from_lists([[] for _ in range(clients)])


class BySource(Sampler):
    """Every client holds tasks of one source, a category or several; the clients of a source share its tasks equally, without
    overlap.

    `sources={"algebra": 5, "geometry": 5}` gives each category five clients; by default all categories get equally many.
    `"algebra+series": 5` divides the tasks of both categories among five clients. Clients are numbered source by source, in
    the order of the names.
    """

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture", "sizes"})

    sources: dict[str, StrictInt] | None = Field(
        default=None,
        description="number of clients for each category, or for several together (a+b: 2); by default the same for all",
    )
    tasks_per_client: int | None = Field(
        None, ge=1, description="tasks of every client; by default an equal part of its source"
    )

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, sources: Mapping[str, int] | None) -> Mapping[str, int] | None:
        if sources is not None and not sources:
            raise ValueError("sources must name at least one category, or be left out")
        for name, count in (sources or {}).items():
            if count < 1:
                raise ValueError(f"sources gives {count} clients to {name!r}: at least 1 is needed, or leave it out")
        return sources

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
        """Return how many clients each source gets."""
        if self.sources is None:
            each, rest = divmod(clients, len(table.names))
            if rest or not each:
                raise OptionError(
                    f"{clients:,} clients cannot be divided equally among {len(table.names)} categories "
                    f"({join_names(table.names)}): say how many each gets with sources="
                )
            return dict.fromkeys(table.names, each)
        held: set[str] = set()
        for name in self.sources:
            for category in split_source(name, table.names):
                if category not in table.names:
                    raise unknown_name_error("category", category, table.names)
                if category in held:
                    raise OptionError(f"sources names the category {category!r} twice")
                held.add(category)
        if sum(self.sources.values()) != clients:
            raise OptionError(f"sources names {sum(self.sources.values()):,} clients, {clients:,} are asked for")
        return dict(self.sources)


def split_source(source: str, categories: Sequence[str]) -> list[str]:
    """The categories that a key of `sources` names: the key itself if it is a category (whose name may have a plus), else its
    parts."""
    return [source] if source in categories else [part.strip() for part in source.split("+")]
