"""One division of one pool: roles first, then the clients among the remaining tasks, then the server's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.roles import reserve_roles, sample_server_role
from fedagentgym.partitions.samplers.sampler import FunctionSampler, Sampler, sample_clients
from fedagentgym.partitions.table import TaskTable


class Division(NamedTuple):
    """The assignment, in the numbers of the table, and the ids of each role."""

    clients: Assignment
    roles: dict[str, tuple[str, ...]]


def divide(
    table: TaskTable,
    sampler: Sampler | FunctionSampler,
    clients: int,
    seed: int,
    role_sizes: Mapping[str, int],
    server_overlap: float,
) -> Division:
    """Compute the division from these arguments alone; `verify` calls this again and compares."""
    left, drawn = reserve_roles(table, role_sizes, seed)
    assignment = sample_clients(sampler, left, clients, seed)
    if "server" in role_sizes:
        drawn["server"] = left.rows[sample_server_role(left, assignment, role_sizes["server"], server_overlap, seed)]
    roles = {name: tuple(table.ids[number] for number in numbers.tolist()) for name, numbers in drawn.items()}
    return Division(assignment.renumber(left.rows), roles)
