"""One division of one pool: roles first, then the clients among the remaining tasks, then the server's tasks.

The roles `public`, `auxiliary` and `warmup` exclude client tasks, `server` may overlap with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError, show_value, unknown_name_error
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.record import ROLES
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


# ---- roles ------------------------------------------------------------------------------------------------------------


Ints = NDArray[np.int64]
RESERVED = ("public", "auxiliary", "warmup")


def check_sizes(sizes: object) -> dict[str, int]:
    if not isinstance(sizes, Mapping):
        raise OptionError(f"roles is a mapping from a role to its number of tasks, got {show_value(sizes)}")
    for name, size in sizes.items():
        if name not in ROLES:
            raise unknown_name_error("role", name, ROLES)
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise OptionError(f"the role {name!r} holds a number of tasks, got {show_value(size)}")
    return {name: int(sizes[name]) for name in ROLES if sizes.get(name)}


def reserve_roles(table: TaskTable, sizes: Mapping[str, int], seed: int) -> tuple[TaskTable, dict[str, Ints]]:
    """Draw the roles that exclude client tasks; samplers see the table of the remaining tasks."""
    wanted = {name: sizes[name] for name in RESERVED if name in sizes}
    if sum(wanted.values()) >= len(table) and wanted:
        asked = ", ".join(f"{name} {size:,}" for name, size in wanted.items())
        raise OptionError(
            f"the roles ({asked}) take all {len(table):,} tasks of the pool: lower them, clients need tasks too"
        )
    free = np.ones(len(table), dtype=bool)
    drawn: dict[str, Ints] = {}
    for name, size in wanted.items():
        left = np.flatnonzero(free)
        drawn[name] = np.sort(left[stream(seed, "role", name).choice(left.size, size)])
        free[drawn[name]] = False
    return (table.select(free) if wanted else table), drawn


def sample_server_role(table: TaskTable, clients: Assignment, size: int, overlap: float, seed: int) -> Ints:
    """The server's tasks: a share `overlap` from the clients' tasks, the rest from tasks that no client holds.

    `clients` uses the table's own numbers, so neither part can contain a task of a reserved role.
    """
    held = clients.count_copies(len(table)) > 0
    known, fresh = np.flatnonzero(held), np.flatnonzero(~held)
    from_clients = round(size * overlap)
    from_rest = size - from_clients
    if from_clients > known.size or from_rest > fresh.size:
        raise OptionError(
            f"the server's {size:,} tasks at server_overlap {overlap:g} need {from_clients:,} that clients hold (of "
            f"{known.size:,}) and {from_rest:,} that nobody holds (of {fresh.size:,}): lower the role or the overlap"
        )
    source = stream(seed, "role", "server")
    chosen = [known[source.choice(known.size, from_clients)], fresh[source.choice(fresh.size, from_rest)]]
    return np.sort(np.concatenate(chosen))
