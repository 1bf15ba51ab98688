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
    """The tasks, sorted by category, are cut into blocks, and each client gets some, so that most clients have few categories. No
    two clients share a task.

    With `shards_per_client` every client has equally many blocks, of `shard_size` tasks or as large as the pool admits. With
    `shard_size` alone all blocks are handed out, so that some clients have one more than others. Inside a category the
    order is random.
    """

    shards_per_client: int | None = Field(
        None, ge=1, description="blocks of every client; by default all blocks are handed out"
    )
    shard_size: int | None = Field(None, ge=1, description="tasks of a block; by default as many as the pool admits")
    keep_incomplete: bool = Field(
        default=False,
        description="also hand out the last, smaller block; no effect if shards_per_client and shard_size are given",
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        labels, names = table.find_labels(self.label)
        tasks, each = len(table), self.shards_per_client
        if each is not None:
            size = self.shard_size or tasks // (clients * each)
            needed = clients * each * max(size, 1)
            if needed > tasks or not size:
                raise OptionError(
                    f"{clients:,} clients x {each:,} shards of {max(size, 1):,} need {needed:,} tasks, the pool "
                    f"has {tasks:,}: lower shards_per_client or shard_size, or use fewer clients"
                )
        elif self.shard_size is not None:
            size = self.shard_size
        else:
            raise OptionError("shards needs shards_per_client, shard_size, or both")
        exact = each is not None and self.shard_size is not None
        blocks = -(-tasks // size) if self.keep_incomplete and not exact else tasks // size
        if blocks < clients:
            raise OptionError(
                f"{tasks:,} tasks make {blocks:,} shards of {size:,}, and {clients:,} clients need one each: lower "
                "shard_size or use fewer clients"
            )
        used = blocks if each is None else each * clients
        order = stream(seed, "shards", "deal").permutation(blocks)[:used]
        block_owner = np.full(blocks, -1, dtype=np.int64)
        block_owner[order] = np.sort(
            np.arange(used) % clients
        )  # if the blocks cannot be divided equally, the first clients get one more
        items = []
        for number, name in enumerate(names):
            members = np.flatnonzero(labels == number)
            items.append(members[stream(seed, "shards", "order", name).permutation(members.size)])
        sorted_items = np.concatenate(items)[: blocks * size]
        owner = block_owner[np.arange(sorted_items.size) // size]
        return Assignment.from_pairs(owner[owner >= 0], sorted_items[owner >= 0], clients)


class Pathological(LabelSampler):
    """Every client has exactly n categories; the clients of a category share its tasks in equal parts, without overlap.

    `assignment` selects the categories: `random` draws n different ones for every client, `deterministic` gives client k the
    categories k, k + 1, ..., k + n - 1 (modulo their number), and `first-deterministic` gives client k category k and draws
    the others. A category that no client has is left out.
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
        every, wanted = np.arange(clients), self.categories_per_client
        first = every % len(names)
        if self.assignment == "deterministic":
            owners, held = np.repeat(every, wanted), ((first[:, None] + np.arange(wanted)) % len(names)).reshape(-1)
        elif self.assignment == "random":
            streams = StreamBatch(seed, "pathological", "random", count=clients)
            owners, held = sample_distinct(streams, every, np.full(clients, len(names)), np.full(clients, wanted))
        else:
            streams = StreamBatch(seed, "pathological", "first-deterministic", count=clients)
            owners, others = sample_distinct(
                streams, every, np.full(clients, len(names) - 1), np.full(clients, wanted - 1)
            )
            others += others >= first[owners]
            owners, held = np.concatenate([every, owners]), np.concatenate([first, others])
        totals = np.bincount(labels, minlength=len(names))
        sharers = np.bincount(held, minlength=len(names))
        if np.any(sharers > totals):
            scarce = int(np.argmax(sharers - totals))
            raise OptionError(
                f"{sharers[scarce]:,} clients would share the {totals[scarce]:,} tasks of {names[scarce]!r}: use fewer "
                "clients, lower categories_per_client, or spread them evenly with assignment='deterministic'"
            )
        # parts of a category differ by at most one task, and clients of lower number have the larger parts
        has = np.zeros((clients, len(names)), dtype=np.int64)
        has[owners, held] = 1
        sharers = np.maximum(sharers, 1)
        counts: Ints = has * (totals // sharers + (np.cumsum(has, axis=0) - 1 < totals % sharers))
        return deal_by_label(labels, names, counts, seed, "pathological")
