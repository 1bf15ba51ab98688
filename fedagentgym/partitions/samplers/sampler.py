"""What every partition is: a small frozen settings class with one method, `sample`."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from fedagentgym.base.errors import OptionError
from fedagentgym.base.settings import Settings
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.table import TaskTable

Axis = Literal["mixture", "sizes", "hardness"]
Compat = Literal["fedagent"]


class Sampler(Settings):
    """Settings of one partition. The fields are its parameters; they are written into the split file as they are."""

    axes: ClassVar[frozenset[Axis]] = frozenset()
    """What this sampler makes clients differ in; the other axes stay at what chance gives."""

    needs_labels: ClassVar[bool] = False

    @abstractmethod
    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        """Which items of the table each client holds. Depends on nothing but the arguments."""


def check_fits(clients: int, tasks: int, table: TaskTable) -> None:
    """Every client gets `tasks` different items: more than the pool has is impossible."""
    if tasks > len(table):
        raise OptionError(
            f"{tasks:,} tasks per client are asked for, the pool has {len(table):,}: "
            f"lower tasks_per_client to at most {len(table):,}"
        )


def check_disjoint(clients: int, tasks: int, table: TaskTable) -> None:
    """No two clients share an item: the sizes must fit into the pool together."""
    check_overlap(clients, tasks, 1.0, clients * tasks, table)


def check_overlap(clients: int, tasks: int, overlap: float, needed: int, table: TaskTable) -> None:
    """`needed` different items are dealt out with the given number of copies."""
    if needed > len(table):
        enough = -(-clients * tasks * 100 // len(table)) / 100
        most = int(overlap * len(table)) // clients
        lower = f"lower tasks per client to {most}" if most else f"use at most {len(table):,} clients"
        raise OptionError(
            f"{clients:,} clients x {tasks:,} tasks at overlap {overlap:g} need {needed:,} tasks, "
            f"the pool has {len(table):,}: raise overlap to {enough:g} or {lower}"
        )
