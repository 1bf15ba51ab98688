"""Client splits for other libraries, and divisions made by other libraries as client splits.

A Hugging Face data set whose rows are in the pool's order is divided by row numbers. `fedagentgym.bridges.flower_datasets`
divides a data set by the task ids in its rows. A division made elsewhere is passed as a mapping client -> task ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedagentgym.base.errors import DataError, require_type
from fedagentgym.envs.make import env_class, read_options
from fedagentgym.envs.pool import TaskPool
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.client_split import ClientSplit, collect_provenance
from fedagentgym.partitions.record import SplitRecord
from fedagentgym.partitions.table import TaskTable, list_evaluation, open_pool, refuse_evaluation
from fedagentgym.partitions.verification import IMPORTED


def get_row_indices(client_split: ClientSplit) -> list[list[int]]:
    """Return which rows of a data set belong to each client, for data sets whose rows are in the pool's order.

    Args:
        client_split: The split.

    Returns:
        For each client, the ascending row numbers of its tasks, in the form that `dataset.select` takes.

    Examples:
        >>> from fedagentgym.partitions import federate
        >>> rows = get_row_indices(federate("fedagentgym/Guess-v0", clients=3))
        >>> [len(each) for each in rows]
        [200, 200, 200]
    """
    require_type("rows are those of a ClientSplit", client_split, ClientSplit)
    position = client_split.pool.find_position
    rows = np.fromiter(map(position, client_split.table.ids), dtype=np.int64, count=len(client_split.table))
    return [np.sort(rows[numbers]).tolist() for numbers in client_split.assignment]


def import_client_split(
    env_id: str,
    held: Mapping[int, Iterable[str]] | Sequence[Iterable[str]],
    *,
    split: str = "train",
    env: Mapping[str, Any] | None = None,
    roles: Mapping[str, Iterable[str]] | None = None,
    pool: TaskPool | None = None,
) -> ClientSplit:
    """Make a client split from a division that was made elsewhere.

    Args:
        env_id: Id of the environment.
        held: Task ids of each client: a sequence, or a mapping whose keys count the clients from 0.
        split: The split whose tasks are divided.
        env: Options of the environment.
        roles: Ids of tasks that are set aside, by role.
        pool: Tasks of your own in place of those that the environment loads.

    Returns:
        The client split. No sampler made it, so `verify` cannot sample it again.

    Raises:
        OptionError: If the split is an evaluation split.
        DataError: If there are no clients, a client holds a task twice, or a task is not in the pool.
    """
    options = dict(env or {})
    cls = env_class(env_id)
    split = cls.canonical_split(split)
    refuse_evaluation(cls, split)
    whole = open_pool(env_id, split, options, pool)
    table = TaskTable.from_pool(whole)
    if isinstance(held, Mapping):
        if set(held) != set(range(len(held))):
            raise DataError(
                f"clients of the mapping are numbered 0 to {len(held) - 1}, found {sorted(held, key=str)[:5]}"
            )
        held = [held[number] for number in range(len(held))]
    rows = [list(ids) for ids in held]
    if not rows:
        raise DataError("the mapping has no clients")
    clients = Assignment.from_lists(table.find_numbers(ids, f"client {number}") for number, ids in enumerate(rows))
    if clients.has_repeats():
        raise DataError("a client of the mapping holds a task twice")
    named = {name: tuple(sorted(ids)) for name, ids in (roles or {}).items()}
    for name, ids in named.items():
        table.find_numbers(ids, f"the role {name!r}")
    made = SplitRecord(
        env_id=env_id,
        env_split=split,
        env_options=read_options(env_id, options).portable,
        pool_digest=whole.digest,
        sampler=IMPORTED,
        parameters={},
        seed=0,
        clients=clients,
        ids=table.ids,
        variants=(None,) * len(rows),
        roles=named,
        evaluation=list_evaluation(cls),
        provenance=collect_provenance(),
    )
    return ClientSplit(made, whole, options, own_pool=pool is not None)
