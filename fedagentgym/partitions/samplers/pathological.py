"""Pathological: every client holds tasks of a few categories only (Li et al. 2022, arXiv 2102.02079)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.streams import StreamBatch
from fedagentgym.partitions.arithmetic.by_label import deal_by_label
from fedagentgym.partitions.arithmetic.draws import sample_distinct
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.samplers.sampler import LabelSampler
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]


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
