"""Random numbers for many clients at once: distinct items, counts of categories, probabilities, and sizes with a given sum.

Every client draws from its own stream. Sizes are Beta-shaped, scaled and rounded (Algorithm 3, lines 1-6).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from fedagentgym.base.errors import OptionError
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


# ---- sizes ------------------------------------------------------------------------------------------------------------


def compute_total(clients: int, mean: float, overlap: float | None, items: int) -> int:
    """T: floor(overlap * items) if an overlap is asked for, else clients * mean, both without rounding on the way."""
    if overlap is not None:
        return math.floor(Fraction(repr(float(overlap))) * items)
    return math.floor(Fraction(repr(float(mean))) * clients)


def check_total(total: int, clients: int, low: int, high: int, what: str) -> None:
    if not clients * low <= total <= clients * high:
        raise OptionError(
            f"{total:,} {what} cannot be spread over {clients:,} clients with {low:,} to {high:,} each: "
            f"the total must lie between {clients * low:,} and {clients * high:,}"
        )


def sample_beta_sizes(
    seed: int, purpose: str, clients: int, total: int, low: int, mean: float, high: int, dispersion: float
) -> Ints:
    """Sizes between low and high that sum to `total`; the larger the dispersion parameter, the closer to each other."""
    if low == high:
        return np.full(clients, low, dtype=np.int64)
    share = (mean - low) / (high - low)
    if 0.0 < share < 1.0:
        uniform = StreamBatch(seed, purpose, "size", count=clients).uniform(1)[:, 0]
        drawn = betaincinv(share * dispersion, (1.0 - share) * dispersion, uniform)
    else:
        drawn = np.full(clients, share)
    shape = np.rint(drawn * GRID) / GRID
    return round_to_sum(scale_to_sum(low + shape * (high - low), total, low, high), total, low, high)


def scale_to_sum(sizes: Floats, total: int, low: int, high: int) -> Floats:
    """Scale sizes by one factor so that they sum to `total`; a size that would leave the bounds stays at the bound.

    Scaling first and clipping afterwards would change the sum. Instead, the sizes that violate a bound on the side with
    the larger total violation are fixed there, and the others are scaled again, until none violates a bound.
    """
    most = float(sizes.max(initial=0.0))
    sizes = np.rint(sizes / most * GRID) / GRID if most > 0 else np.ones_like(sizes)
    result = np.zeros_like(sizes)
    free = np.ones(sizes.size, dtype=bool)
    while free.any():
        left = total - math.fsum(result[~free])
        weight = math.fsum(sizes[free])
        scaled = sizes * (left / weight) if weight > 0 else np.full(sizes.size, left / free.sum())
        over, under = np.maximum(scaled - high, 0.0), np.maximum(low - scaled, 0.0)
        excess = math.fsum(over[free]) - math.fsum(under[free])
        leaving = free & ((over > 0) if excess > 0 else (under > 0) if excess < 0 else (over > 0) | (under > 0))
        if not leaving.any():
            result[free] = scaled[free]
            break
        result[leaving] = np.clip(scaled[leaving], low, high)
        free &= ~leaving
    return result


def round_to_sum(sizes: Floats, total: int, low: int, high: int) -> Ints:
    """Largest remainder: round down, then add one to those with the largest remainders; the sum is exactly `total`."""
    exact = np.rint(sizes * (1 << 20)).astype(np.int64)
    whole, remainder = exact >> 20, exact & ((1 << 20) - 1)
    missing = total - int(whole.sum())
    while missing:
        open_ = np.flatnonzero(whole < high) if missing > 0 else np.flatnonzero(whole > low)
        order = open_[np.argsort(-remainder[open_] if missing > 0 else remainder[open_], kind="stable")]
        chosen = order[: abs(missing)]
        whole[chosen] += 1 if missing > 0 else -1
        remainder[chosen] = 0
        missing = total - int(whole.sum())
    return whole
