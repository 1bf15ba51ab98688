"""Draws for many clients at once, every client from its own stream: distinct items, category counts, probabilities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.streams import GRID, StreamBatch, reduce_below

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MAX_BATCH_ENTRIES = 1 << 19


def iter_batches(clients: int, entries_each: int) -> Iterator[range]:
    """Ranges of clients whose batch fits into the processor's cache. The result does not depend on the size."""
    step = max(1, _MAX_BATCH_ENTRIES // max(1, entries_each))
    return (range(start, min(start + step, clients)) for start in range(0, clients, step))


def sample_distinct(streams: StreamBatch, owner: Ints, size: Ints, want: Ints) -> tuple[Ints, Ints]:
    """For every group g, `want[g]` distinct numbers below `size[g]`, from the stream of client `owner[g]`.

    Groups are in the order of their owners. Numbers are drawn until enough different ones are found, which gives every
    set the same probability; if more than half is wanted, the complement is drawn instead. Returns (group, number) pairs,
    ascending.
    """
    flipped = want > size - want
    draw = np.where(flipped, size - want, want)
    span = int(size.max(initial=0)) + 1
    keys = np.zeros(0, dtype=np.int64)
    missing = draw
    while int(missing.sum()):
        group = np.repeat(np.arange(len(size)), missing)
        words = streams.random_raw(np.bincount(owner[group], minlength=len(streams)))
        numbers, fair = reduce_below(words, size[group])
        keys = _merge_keys(keys, (group * span + numbers)[fair])
        missing = draw - np.bincount(keys // span, minlength=len(size))
    if flipped.any():
        keys = _complement_groups(keys, flipped, size, span)
    return keys // span, keys % span


def _merge_keys(old: Ints, new: Ints) -> Ints:
    keys = np.sort(np.concatenate([old, new]))
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if keys.size else keys


def _complement_groups(keys: Ints, flipped: NDArray[np.bool_], size: Ints, span: int) -> Ints:
    """The keys, with the flipped groups replaced by their complement."""
    groups = np.flatnonzero(flipped)
    owner = np.repeat(groups, size[groups])
    first = np.repeat(np.cumsum(size[groups]) - size[groups], size[groups])
    whole = owner * span + np.arange(owner.size) - first
    out = flipped[keys // span]
    left = np.ones(whole.size, dtype=bool)
    left[np.searchsorted(whole, keys[out])] = False
    return np.sort(np.concatenate([keys[~out], whole[left]]))


def softmax(logits: Floats) -> Ints:
    """Probabilities of each row in whole units of 2**-40."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = weights / weights.sum(axis=1, keepdims=True)
    return np.rint(shares * GRID).astype(np.int64)


def sample_category_counts(streams: StreamBatch, total: Ints, weights: Ints) -> Ints:
    """For every client, how `total[k]` draws fall into the categories with the integer weights `weights[k]`."""
    clients, categories = weights.shape
    ends = np.cumsum(weights, axis=1)
    needed = np.where(ends[:, -1] > 0, total, 0)
    shift = int(ends[:, -1].max(initial=0)) + 1
    flat_ends = (ends + np.arange(clients)[:, None] * shift).reshape(-1)
    counts = np.zeros((clients, categories), dtype=np.int64)
    while int(needed.sum()):
        client = np.repeat(np.arange(clients), needed)
        numbers, fair = reduce_below(streams.random_raw(needed), ends[client, -1])
        cell = np.searchsorted(flat_ends, (numbers + client * shift)[fair], side="right")
        counts += np.bincount(cell, minlength=counts.size).reshape(counts.shape)
        needed = needed - np.bincount(client[fair], minlength=clients)
    return counts


def redistribute_overflow(streams: StreamBatch, counts: Ints, weights: Ints, capacity: Ints) -> Ints:
    """Cut counts to the capacity of their category and redraw the remainder among categories with free capacity.

    Every pass either places the whole remainder or fills one more category, so there are at most as many passes as
    categories. If no category with free capacity has a positive weight, the free capacity itself is the weight.
    """
    held, left = np.minimum(counts, capacity), np.maximum(counts - capacity, 0).sum(axis=1)
    while int(left.sum()):
        room = capacity - held
        weight = np.where(room > 0, weights, 0)
        weight = np.where(weight.sum(axis=1, keepdims=True) > 0, weight, room)
        held = held + sample_category_counts(streams, left, weight)
        left = np.maximum(held - capacity, 0).sum(axis=1)
        held = np.minimum(held, capacity)
    return held
