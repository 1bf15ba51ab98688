"""Which client holds which items: two integer arrays, whatever the number of clients, and two ways to place items on clients.

`deal_by_label` hands out the items of each label without sharing. `assign_balanced` places copies: sizes are exact, the
copies of two items differ by at most one, and no client gets an item twice. Algorithm 3 of the paper walks over the items
and draws distinct clients in proportion to their remaining places. That takes a weighted draw per item and can run out of
distinct clients near the end. Dealing gives the same distribution: put every client into a deck as often as it has places,
shuffle the deck, deal it out over the items in order. A client that an item got twice is then exchanged with a random client
of a random other item such that neither item has a repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.streams import Stream, stream

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Which client holds which items, as two integer arrays: `len(assignment)` clients, `assignment[3]` the items of one.

    Attributes:
        offsets: Client k holds `items[offsets[k]:offsets[k + 1]]`.
        items: Numbers of the items, ascending within a client.

    Example:
        >>> Assignment.from_lists([[4, 0], [2]])[0].tolist()
        [0, 4]
    """

    offsets: Ints
    items: Ints

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[int]]) -> Assignment:
        """Make an assignment of the clients' items.

        Args:
            lists: The numbers of each client's items, in any order.

        Returns:
            The assignment.
        """
        rows = [np.sort(np.fromiter(row, dtype=np.int64)) for row in lists]
        sizes = np.array([row.size for row in rows], dtype=np.int64)
        return cls(compute_offsets(sizes), np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64))

    @classmethod
    def from_pairs(cls, clients: Ints, items: Ints, count: int) -> Assignment:
        """Make an assignment of pairs of a client and an item.

        Args:
            clients: The client of each pair.
            items: The item of each pair, in any order.
            count: Number of clients.

        Returns:
            The assignment.
        """
        span = int(items.max()) + 1 if items.size else 1
        keys = np.sort(clients * span + items)
        return cls(compute_offsets(np.bincount(clients, minlength=count)), keys % span)

    @classmethod
    def concatenate(cls, parts: Iterable[Assignment]) -> Assignment:
        """Join assignments: the clients of one after those of the other.

        Args:
            parts: The assignments.

        Returns:
            The assignment of all clients.
        """
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
        """Count how many clients hold each item.

        Args:
            items: Number of items.

        Returns:
            The count of each.
        """
        return np.bincount(self.items, minlength=items).astype(np.int64)

    def renumber(self, names: Ints) -> Assignment:
        """Replace item i by `names[i]`.

        Args:
            names: The new numbers, ascending, so that the order within clients stays.

        Returns:
            The assignment with other numbers.
        """
        return Assignment(self.offsets, names[self.items])

    def same_as(self, other: Assignment) -> bool:
        """Compare two assignments.

        Args:
            other: The other one.

        Returns:
            Whether every client holds the same items in both.
        """
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.items, other.items)

    def has_repeats(self) -> bool:
        """Look for repeats.

        Returns:
            Whether some client holds an item twice.
        """
        owners, items = self.owners, np.asarray(self.items)
        return bool(np.any((items[1:] == items[:-1]) & (owners[1:] == owners[:-1])))


def compute_offsets(sizes: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])


# ---- placing items on clients -----------------------------------------------------------------------------------------


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


_MAX_EXCHANGE_PASSES = 60
_PROPOSALS_PER_PASS = 1 << 18


def assign_balanced(sizes: Ints, items: int, stream: Stream) -> Assignment:
    """Every client k gets `sizes[k]` different items; every item goes to floor or ceil of sum(sizes) / items clients.

    Needs 0 <= sizes[k] <= items. Always possible: dealing in turn, client after client, is one solution.
    """
    clients, total = len(sizes), int(sizes.sum())
    if not total:
        return Assignment(compute_offsets(sizes), np.zeros(0, dtype=np.int64))
    if total * 2 > clients * items:
        return _complement(assign_balanced(items - sizes, items, stream), items)
    copies = np.full(items, total // items, dtype=np.int64)
    copies[stream.choice(items, total - int(copies.sum()))] += 1
    deck = np.repeat(np.arange(clients), sizes)[stream.permutation(total)]
    keys = np.sort(np.repeat(np.arange(items), copies) * clients + deck)
    keys = _remove_repeats(keys, compute_offsets(copies), clients, stream)
    return Assignment.from_pairs(keys % clients, keys // clients, clients)


def _complement(assignment: Assignment, items: int) -> Assignment:
    """For every client the items that it lacks."""
    held = np.zeros((len(assignment), items), dtype=bool)
    held[assignment.owners, assignment.items] = True
    clients, left = np.nonzero(~held)
    return Assignment(compute_offsets(np.bincount(clients, minlength=len(assignment))), left.astype(np.int64))


def _remove_repeats(keys: Ints, starts: Ints, clients: int, stream: Stream) -> Ints:
    """`keys` are sorted item * clients + client: exchanges are tried for all repeats at once, until few remain."""
    for _ in range(_MAX_EXCHANGE_PASSES):
        repeats = _find_repeats(keys)
        if not repeats.size:
            return keys
        first, second = _find_partners(keys, clients, repeats, stream)
        keys = np.sort(_apply_exchanges(keys, clients, first, second))
    return _repair_one_by_one(keys, starts, clients, stream)


def _find_repeats(keys: Ints) -> Ints:
    """Positions that hold the same (item, client) as the position before."""
    return np.flatnonzero(keys[1:] == keys[:-1]) + 1


def _find_partners(keys: Ints, clients: int, repeats: Ints, stream: Stream) -> tuple[Ints, Ints]:
    """For every repeat the first of many random positions with which it could exchange clients; others are omitted."""
    tries = min(max(_PROPOSALS_PER_PASS // repeats.size, 4), 2048)
    second = stream.integers(keys.size, size=repeats.size * tries)
    first = np.repeat(repeats, tries)
    new, other_new = _preview_exchange(keys, clients, first, second)
    fits = (~_contains(keys, new) & ~_contains(keys, other_new) & ~_contains(repeats, second)).reshape(
        repeats.size, tries
    )
    lucky = fits.any(axis=1)
    return repeats[lucky], second.reshape(fits.shape)[lucky, fits.argmax(axis=1)[lucky]]


def _preview_exchange(keys: Ints, clients: int, first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """The keys of the positions after the exchange of their clients."""
    client, other_client = keys[first] % clients, keys[second] % clients
    return keys[first] - client + other_client, keys[second] - other_client + client


def _apply_exchanges(keys: Ints, clients: int, first: Ints, second: Ints) -> Ints:
    """Exchange the clients of all pairs of positions that do not interfere with each other."""
    new, other_new = _preview_exchange(keys, clients, first, second)
    free = _mark_first_occurrences(second)
    free &= _mark_first_occurrences(np.where(free, new, -1 - np.arange(new.size)))
    free &= _mark_first_occurrences(np.where(free, other_new, -1 - np.arange(new.size)))
    free &= ~np.isin(other_new, new[free])
    result = keys.copy()
    result[first[free]] = new[free]
    result[second[free]] = other_new[free]
    return result


def _contains(keys: Ints, wanted: Ints) -> NDArray[np.bool_]:
    """Which of the wanted keys occur among the sorted keys."""
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.asarray(keys[at] == wanted)


def _mark_first_occurrences(values: Ints) -> NDArray[np.bool_]:
    """Mark the first occurrence of every value."""
    first = np.zeros(values.size, dtype=bool)
    first[np.unique(values, return_index=True)[1]] = True
    return first


def _repair_one_by_one(keys: Ints, starts: Ints, clients: int, stream: Stream) -> Ints:
    """Resolve the last repeats, for which random partners hardly ever fit.

    Take the repeat whose item has the fewest different clients. Every item that lacks its client then holds some client
    that this item lacks: otherwise it would hold fewer different clients than this one while having at most one place
    less, so it would have a repeat and fewer clients itself. So an exchange exists, and each one removes a repeat.
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
