"""Handing out the tasks of each label by given counts, without sharing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment

Ints = NDArray[np.int64]


def deal_by_label(labels: Ints, names: Sequence[str], counts: Ints, seed: int, sampler: str) -> Assignment:
    """Client k gets `counts[k, label]` items of each label: the label's items in random order, dealt out in the order of
    the clients. `sampler` names the random stream."""
    clients, items = [], []
    for number, name in enumerate(names):
        members = np.flatnonzero(labels == number)
        order = stream(seed, sampler, "order", name).permutation(members.size)
        owner = np.repeat(np.arange(len(counts)), counts[:, number])
        clients.append(owner)
        items.append(members[order[: owner.size]])
    return Assignment.from_pairs(np.concatenate(clients), np.concatenate(items), len(counts))
