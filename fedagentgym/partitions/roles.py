"""Task ids reserved beside the clients: `public`, `auxiliary`, `warmup` exclude client tasks, `server` may overlap with them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError, show_value, unknown_name_error
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.files.split import ROLES
from fedagentgym.partitions.table import TaskTable

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
