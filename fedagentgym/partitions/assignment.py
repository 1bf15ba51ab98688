"""Assignments of items to clients, stored as two integer arrays, and the random draws that make them.

Every client draws from its own stream (`sample_distinct`, `sample_category_counts`). Sizes follow a Beta distribution and are
then scaled and rounded (Algorithm 3 of the paper, lines 1-6).

`deal_by_label` hands out the items of each label without sharing. `assign_balanced` places copies: sizes are exact, the
numbers of copies of two items differ by at most one, and no client gets an item twice. Algorithm 3 of the paper walks over
the items and draws distinct clients in proportion to their remaining capacity. It needs a weighted draw per item and can run
out of distinct clients near the end. Dealing gives the same distribution: a deck holds every client as often as the client
has capacity, is shuffled, and is dealt to the items in order. If an item got a client twice, one of the two is exchanged with
a random client of a random other item such that neither item has a repeat.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from fedagentgym.base.shorten import show_fields
from fedagentgym.base.streams import GRID, Stream, StreamBatch, reduce_below, stream

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Assignment:
    """The items of each client, as two integer arrays. `assignment[3]` are the items of client 3.

    Attributes:
        offsets: Client k holds `items[offsets[k]:offsets[k + 1]]`.
        items: Numbers of the items, ascending within a client.

    Examples:
        >>> Assignment.from_lists([[4, 0], [2]])[0].tolist()
        [0, 4]
    """

    offsets: Ints
    items: Ints

    def __repr__(self) -> str:
        return show_fields(self)

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[int]]) -> Assignment:
        """Make an assignment from one list of item numbers per client, in any order."""
        rows = [np.sort(np.fromiter(row, dtype=np.int64)) for row in lists]
        sizes = np.array([row.size for row in rows], dtype=np.int64)
        return cls(compute_offsets(sizes), np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64))

    @classmethod
    def from_pairs(cls, clients: Ints, items: Ints, count: int) -> Assignment:
        """Make an assignment for `count` clients from (client, item) pairs in any order."""
        span = int(items.max()) + 1 if items.size else 1
        keys = np.sort(clients * span + items)
        return cls(compute_offsets(np.bincount(clients, minlength=count)), keys % span)

    @classmethod
    def concatenate(cls, parts: Iterable[Assignment]) -> Assignment:
        """Join assignments: the clients of each follow those of the one before."""
        parts = list(parts)
        sizes = np.concatenate([part.sizes for part in parts])
        return cls(compute_offsets(sizes), np.concatenate([part.items for part in parts]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Ints:
        return self.items[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))

    @property
    def sizes(self) -> Ints:
        """Number of items of each client."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Ints:
        """The client of every entry of `items`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def count_copies(self, items: int) -> Ints:
        """Count how many clients hold each of the items 0 .. items-1."""
        return np.bincount(self.items, minlength=items).astype(np.int64)

    def renumber(self, names: Ints) -> Assignment:
        """Replace item i by `names[i]`. `names` must ascend, so that the items of a client stay sorted."""
        return Assignment(self.offsets, names[self.items])

    def same_as(self, other: Assignment) -> bool:
        """Return whether every client holds the same items in both assignments."""
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.items, other.items)

    def has_repeats(self) -> bool:
        """Return whether some client holds an item twice."""
        owners, items = self.owners, np.asarray(self.items)
        return bool(np.any((items[1:] == items[:-1]) & (owners[1:] == owners[:-1])))


def compute_offsets(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])


# ---- placing items on clients -----------------------------------------------------------------------------------------


def deal_by_label(labels: Ints, names: Sequence[str], counts: Ints, seed: int, sampler: str) -> Assignment:
    """Give client k `counts[k, label]` items of each label. The items of a label are shuffled and handed out in the order of the
    clients. `sampler` names the random stream."""
    clients, items = [], []
    for number, name in enumerate(names):
        members = np.flatnonzero(labels == number)
        order = stream(seed, sampler, "order", name).permutation(members.size)
        owner = np.repeat(np.arange(len(counts)), counts[:, number])
        clients.append(owner)
        items.append(members[order[: owner.size]])
    return Assignment.from_pairs(np.concatenate(clients), np.concatenate(items), len(counts))


_MAX_EXCHANGE_PASSES = 60
_PROPOSALS_PER_PASS = 1 << 18


def assign_balanced(sizes: Ints, items: int, stream: Stream) -> Assignment:
    """Give every client k `sizes[k]` different items, and every item to floor or ceil of sum(sizes) / items clients.

    Requires 0 <= sizes[k] <= items. A solution always exists: deal the items in turn, client after client.
    """
    clients, total = len(sizes), int(sizes.sum())
    if not total:
        return Assignment(compute_offsets(sizes), np.zeros(0, dtype=np.int64))
    if total * 2 > clients * items:  # deal the items that each client lacks, since they are fewer
        lacking = assign_balanced(items - sizes, items, stream)
        held = np.ones((clients, items), dtype=bool)
        held[lacking.owners, lacking.items] = False
        owners, left = np.nonzero(held)
        return Assignment(compute_offsets(np.bincount(owners, minlength=clients)), left.astype(np.int64))
    copies = np.full(items, total // items, dtype=np.int64)
    copies[stream.choice(items, total - int(copies.sum()))] += 1
    deck = np.repeat(np.arange(clients), sizes)[stream.permutation(total)]
    keys = np.sort(np.repeat(np.arange(items), copies) * clients + deck)
    keys = _remove_repeats(keys, compute_offsets(copies), clients, stream)
    return Assignment.from_pairs(keys % clients, keys // clients, clients)


def _find_repeats(keys: Ints) -> Ints:
    """Positions with the same (item, client) as the position before."""
    return np.flatnonzero(keys[1:] == keys[:-1]) + 1


def _contains(keys: Ints, wanted: Ints) -> NDArray[np.bool_]:
    """For each wanted key, whether it occurs among the sorted keys."""
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.asarray(keys[at] == wanted)


def _mark_first_occurrences(values: Ints) -> NDArray[np.bool_]:
    first = np.zeros(values.size, dtype=bool)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def _remove_repeats(keys: Ints, starts: Ints, clients: int, stream: Stream) -> Ints:
    """Exchange clients between items until no item has a client twice. `keys` are the sorted item * clients + client."""
    for _ in range(_MAX_EXCHANGE_PASSES):
        repeats = _find_repeats(keys)
        if not repeats.size:
            return keys
        # 1) for every repeat, the first of many random positions whose exchange of clients makes no new repeat
        tries = min(max(_PROPOSALS_PER_PASS // repeats.size, 4), 2048)
        second = stream.integers(keys.size, size=repeats.size * tries)
        first = np.repeat(repeats, tries)
        client, other_client = keys[first] % clients, keys[second] % clients
        new, other_new = keys[first] - client + other_client, keys[second] - other_client + client
        fits = ~_contains(keys, new) & ~_contains(keys, other_new) & ~_contains(repeats, second)
        fits = fits.reshape(repeats.size, tries)
        lucky = fits.any(axis=1)
        chosen = (np.arange(repeats.size) * tries + fits.argmax(axis=1))[lucky]
        first, second, new, other_new = first[chosen], second[chosen], new[chosen], other_new[chosen]
        # 2) of these exchanges, those that do not interfere with each other
        free = _mark_first_occurrences(second)
        free &= _mark_first_occurrences(np.where(free, new, -1 - np.arange(new.size)))
        free &= _mark_first_occurrences(np.where(free, other_new, -1 - np.arange(new.size)))
        free &= ~np.isin(other_new, new[free])
        exchanged = keys.copy()
        exchanged[first[free]] = new[free]
        exchanged[second[free]] = other_new[free]
        keys = np.sort(exchanged)
    return _repair_one_by_one(keys, starts, clients, stream)


def _repair_one_by_one(keys: Ints, starts: Ints, clients: int, stream: Stream) -> Ints:
    """Resolve the last repeats, for which random partners hardly ever fit.

    Take the item with a repeat that has the fewest different clients. Every item that lacks the repeated client holds some
    client that this item lacks. Otherwise the other item would hold fewer different clients while having at most one copy
    less, so it would itself have a repeat and be taken first. So an exchange exists, and each exchange removes a repeat.
    """
    while (repeats := _find_repeats(keys)).size:
        repeated_in = np.bincount(keys[repeats] // clients, minlength=starts.size - 1)
        different = np.diff(starts) - repeated_in
        position = repeats[np.argmin(different[keys[repeats] // clients])]
        item, client = divmod(int(keys[position]), clients)
        present = keys[starts[item] : starts[item + 1]] % clients
        lacking = np.setdiff1d(np.arange(starts.size - 1), keys[keys % clients == client] // clients)
        for other in lacking[stream.permutation(lacking.size)].tolist():
            places = np.arange(starts[other], starts[other + 1])
            fitting = places[~np.isin(keys[places] % clients, present)]
            if fitting.size:
                chosen = fitting[stream.integers(fitting.size)]
                keys[position], keys[chosen] = item * clients + keys[chosen] % clients, other * clients + client
                break
        keys = np.sort(keys)
    return keys


# ---- draws for many clients at once ---------------------------------------------------------------------------------

_MAX_BATCH_ENTRIES = 1 << 19


def iter_batches(clients: int, entries_each: int) -> Iterator[range]:
    """Ranges of clients, small enough that a batch fits into the processor's cache. Draws do not depend on the batch size."""
    step = max(1, _MAX_BATCH_ENTRIES // max(1, entries_each))
    return (range(start, min(start + step, clients)) for start in range(0, clients, step))


def sample_distinct(streams: StreamBatch, owner: Ints, size: Ints, want: Ints) -> tuple[Ints, Ints]:
    """Draw for every group g `want[g]` distinct numbers below `size[g]`, from the stream of client `owner[g]`.

    Groups are in the order of their owners. Numbers are drawn until enough of them differ, which gives every set the same
    probability. If more than half of the numbers are wanted, the complement is drawn instead. Returns the groups and the
    numbers of the ascending (group, number) pairs.
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
        keys = np.sort(np.concatenate([keys, (group * span + numbers)[fair]]))
        keys = keys[np.diff(keys, prepend=-1) > 0]
        missing = draw - np.bincount(keys // span, minlength=len(size))
    if flipped.any():
        groups = np.flatnonzero(flipped)
        owners = np.repeat(groups, size[groups])
        firsts = np.repeat(np.cumsum(size[groups]) - size[groups], size[groups])
        whole = owners * span + np.arange(owners.size) - firsts
        out = flipped[keys // span]
        left = np.ones(whole.size, dtype=bool)
        left[np.searchsorted(whole, keys[out])] = False
        keys = np.sort(np.concatenate([keys[~out], whole[left]]))
    return keys // span, keys % span


def softmax(logits: Floats) -> Ints:
    """Probabilities of each row, as integers in units of 2**-40."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = weights / weights.sum(axis=1, keepdims=True)
    return np.rint(shares * GRID).astype(np.int64)


def sample_category_counts(streams: StreamBatch, total: Ints, weights: Ints) -> Ints:
    """Count for every client k the categories of `total[k]` draws with the integer weights `weights[k]`."""
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
    """Cut counts to the capacity of their category and redraw the overflow among categories with free capacity.

    Every pass either places all of the overflow or fills one more category, so there are at most as many passes as
    categories. If no category with free capacity has a positive weight, the free capacities are the weights.
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
    """Compute T, the sum of all sizes: floor(overlap * items) if an overlap is given, else floor(clients * mean)."""
    if overlap is not None:
        return math.floor(Fraction(repr(float(overlap))) * items)
    return math.floor(Fraction(repr(float(mean))) * clients)


def sample_beta_sizes(
    seed: int, purpose: str, clients: int, total: int, low: int, mean: float, high: int, dispersion: float
) -> Ints:
    """Sizes between low and high that sum to `total`. The larger the dispersion parameter, the more alike they are."""
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
    """Scale sizes by one factor so that they sum to `total`; a size that would exceed a bound is set to the bound.

    Scaling first and clipping afterwards would change the sum. Instead, the bound with the larger total violation is taken,
    the sizes that violate it are set to it, and the others are scaled again, until no size violates a bound.
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
    """Round down, then add one to the sizes with the largest remainders, so that the sum is exactly `total`."""
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
