"""One division of one pool: roles first, then the clients among the remaining tasks, then the server's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.roles import reserve_roles, sample_server_role
from fedagentgym.partitions.samplers.sampler import FunctionSampler, Sampler, sample_clients
from fedagentgym.partitions.table import TaskTable

DEFAULT_CLIENTS = 10


class Division(NamedTuple):
    """The assignment, in the numbers of the table, and the ids of each role."""

    clients: Assignment
    roles: dict[str, tuple[str, ...]]


def divide(
    table: TaskTable,
    sampler: Sampler | FunctionSampler,
    clients: int | None,
    seed: int,
    role_sizes: Mapping[str, int],
    server_overlap: float,
) -> Division:
    """Everything that is random in a split follows from these arguments; `verify` calls this again and compares.

    Without a number of clients there are as many as the sampler finds in the tasks that the roles leave, or else ten.
    """
    left, drawn = reserve_roles(table, role_sizes, seed)
    if clients is None:
        found = sampler.count_clients(left)
        clients = DEFAULT_CLIENTS if found is None else found
    assignment = sample_clients(sampler, left, clients, seed)
    if "server" in role_sizes:
        drawn["server"] = left.rows[sample_server_role(left, assignment, role_sizes["server"], server_overlap, seed)]
    roles = {name: tuple(table.ids[number] for number in numbers.tolist()) for name, numbers in drawn.items()}
    return Division(assignment.renumber(left.rows), roles)
