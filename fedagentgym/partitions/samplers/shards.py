"""Shards: tasks sorted by category, cut into blocks of equal size, a few random blocks per client (McMahan et al. 2017)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.samplers.sampler import LabelSampler
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]


class Shards(LabelSampler):
    """Clients hold blocks of the tasks in the order of their categories, so that most see few categories; nothing is shared.

    With `shards_per_client` every client has equally many blocks, of `shard_size` tasks or as large as the pool admits. With
    `shard_size` alone all blocks are handed out, so that some clients have one more than others. Inside a category the
    order is random.
    """

    shards_per_client: int | None = Field(None, ge=1, description="blocks of every client; None: as many as there are")
    shard_size: int | None = Field(None, ge=1, description="tasks of a block; None: as large as the pool admits")
    keep_incomplete: bool = Field(
        default=False, description="the last block counts although it is smaller; not with both numbers given"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        labels, names = table.find_labels(self.label)
        size = self._compute_shard_size(len(table), clients)
        exact = self.shards_per_client is not None and self.shard_size is not None
        blocks = -(-len(table) // size) if self.keep_incomplete and not exact else len(table) // size
        if blocks < clients:
            raise OptionError(
                f"{len(table):,} tasks make {blocks:,} shards of {size:,}, and {clients:,} clients need one each: lower "
                "shard_size or use fewer clients"
            )
        dealt = self.shards_per_client * clients if self.shards_per_client is not None else blocks
        order = stream(seed, "shards", "deal").permutation(blocks)[:dealt]
        block_owner = np.full(blocks, -1, dtype=np.int64)
        block_owner[order] = _spread(dealt, clients)
        items = _sort_by_label(labels, names, seed)[: blocks * size]
        owner = block_owner[np.arange(items.size) // size]
        return Assignment.from_pairs(owner[owner >= 0], items[owner >= 0], clients)

    def _compute_shard_size(self, tasks: int, clients: int) -> int:
        if self.shards_per_client is None:
            if self.shard_size is None:
                raise OptionError("shards needs shards_per_client, shard_size, or both")
            return self.shard_size
        size = self.shard_size or tasks // (clients * self.shards_per_client)
        needed = clients * self.shards_per_client * max(size, 1)
        if needed > tasks or not size:
            raise OptionError(
                f"{clients:,} clients x {self.shards_per_client:,} shards of {max(size, 1):,} need {needed:,} tasks, the pool "
                f"has {tasks:,}: lower shards_per_client or shard_size, or use fewer clients"
            )
        return size


def _spread(blocks: int, clients: int) -> Ints:
    """The owner of each block; where they do not come out even, the first clients have one more."""
    counts = np.full(clients, blocks // clients)
    counts[: blocks % clients] += 1
    return np.repeat(np.arange(clients), counts)


def _sort_by_label(labels: Ints, names: tuple[str, ...], seed: int) -> Ints:
    """All items, label after label, each label's in random order."""
    parts = []
    for number, name in enumerate(names):
        members = np.flatnonzero(labels == number)
        parts.append(members[stream(seed, "shards", "order", name).permutation(members.size)])
    return np.concatenate(parts)
