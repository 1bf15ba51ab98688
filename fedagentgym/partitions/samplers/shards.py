"""Disjoint splits in which a client has few categories: `shards` (McMahan et al.) and `pathological`."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import StreamBatch, stream
from fedagentgym.partitions.assignment import Assignment, deal_by_label, sample_distinct
from fedagentgym.partitions.division import LabelSampler
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
        used = self.shards_per_client * clients if self.shards_per_client is not None else blocks
        order = stream(seed, "shards", "deal").permutation(blocks)[:used]
        block_owner = np.full(blocks, -1, dtype=np.int64)
        block_owner[order] = _spread(used, clients)
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


class Pathological(LabelSampler):
    """Clients with exactly n categories each; the clients that have a category share its tasks in equal parts, without overlap.

    Which categories: `random` draws n different ones for every client, `deterministic` gives client k the categories
    k, k + 1, ..., k + n - 1 in turn, and `first-deterministic` gives it category k and draws the others. A category that
    no client has is left out.
    """

    categories_per_client: int = Field(ge=1, description="how many categories every client has")
    assignment: Literal["random", "first-deterministic", "deterministic"] = Field(
        default="random", description="how clients get their categories"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        labels, names = table.find_labels(self.label)
        if self.categories_per_client > len(names):
            raise OptionError(
                f"{self.categories_per_client:,} categories per client are asked for, the pool has {len(names):,}: "
                f"lower categories_per_client to at most {len(names):,}"
            )
        owners, held = self._choose_categories(clients, len(names), seed)
        totals = np.bincount(labels, minlength=len(names))
        sharers = np.bincount(held, minlength=len(names))
        if np.any(sharers > totals):
            scarce = int(np.argmax(sharers - totals))
            raise OptionError(
                f"{sharers[scarce]:,} clients are to share the {totals[scarce]:,} tasks of {names[scarce]!r}: use fewer "
                "clients, lower categories_per_client, or spread them evenly with assignment='deterministic'"
            )
        return deal_by_label(labels, names, _cut_evenly(owners, held, totals, clients), seed, "pathological")

    def _choose_categories(self, clients: int, categories: int, seed: int) -> tuple[Ints, Ints]:
        """(client, category) pairs."""
        wanted = self.categories_per_client
        every = np.arange(clients)
        first = every % categories
        if self.assignment == "deterministic":
            return np.repeat(every, wanted), ((first[:, None] + np.arange(wanted)) % categories).reshape(-1)
        streams = StreamBatch(seed, "pathological", self.assignment, count=clients)
        if self.assignment == "random":
            return sample_distinct(streams, every, np.full(clients, categories), np.full(clients, wanted))
        owners, others = sample_distinct(streams, every, np.full(clients, categories - 1), np.full(clients, wanted - 1))
        others += others >= first[owners]
        return np.concatenate([every, owners]), np.concatenate([first, others])


def _cut_evenly(owners: Ints, held: Ints, totals: Ints, clients: int) -> Ints:
    """Tasks of each client and category: parts differ by at most one, and clients of lower number have the larger ones."""
    has = np.zeros((clients, len(totals)), dtype=np.int64)
    has[owners, held] = 1
    sharers = np.maximum(has.sum(axis=0), 1)
    place = np.cumsum(has, axis=0) - 1
    counts: Ints = has * (totals // sharers + (place < totals % sharers))
    return counts
