"""The sampling of the FedAgent authors' published code, with its fixed seeds, smoothing, cut category and defects.

It was written from a description of that code, so that the code's splits can be made here and compared with ours. It draws
with numpy's own generators in the published order. Their numbers may change between numpy versions, so no other module uses
these generators. Tasks are numbered as in the pool, clients from 0 on, and the seed is 42, as in the code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import OptionError
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]

_SEED = 42
_SMOOTHING = 0.01
_CUT_CATEGORY, _CUT_SHARE = "fashion", 0.2


def assign_windows(items: int, clients: int, tasks: int) -> Assignment:
    """Uniform: the window of client k starts at k * (items // clients). If it has fewer than `tasks` items, it is widened to
    `tasks`, half of it to the left."""
    if tasks > items:
        raise OptionError(f"{tasks:,} tasks per client are asked for, the pool has {items:,}: lower tasks_per_client")
    width = items // clients
    lists = []
    for client in range(clients):
        start, stop = client * width, (client + 1) * width
        missing = max(0, tasks - width)
        left = min(missing // 2, start)
        right = min(missing - left, items - stop)
        left = min(missing - right, start)
        lists.append(range(start - left, stop + right))
    return Assignment.from_lists(lists)


def assign_by_preference(table: TaskTable, clients: int, tasks: int, omega: float) -> Assignment:
    """Preference: clients draw Dirichlet mixtures around the smoothed category shares, with one category cut to a fifth."""
    omega = min(max(omega, 1e-3), 1 - 1e-3)
    order = sorted(range(len(table.names)), key=lambda code: int(np.argmax(table.codes == code)))
    lists = []
    for client in range(clients):
        members = [np.flatnonzero(table.codes == code) for code in order]
        for number, code in enumerate(order):
            if table.names[code] == _CUT_CATEGORY:
                kept = max(1, int(members[number].size * _CUT_SHARE))
                members[number] = np.random.RandomState(_SEED + client).choice(
                    members[number], size=kept, replace=False
                )
        sizes = np.array([row.size for row in members])
        smooth = (sizes / sizes.sum() + _SMOOTHING) / (1.0 + _SMOOTHING * len(sizes))
        rng = np.random.RandomState(_SEED + client)
        mixture = rng.dirichlet(smooth * ((1.0 - omega) / omega))
        mixture = mixture / mixture.sum()
        counts = _redistribute_published_overflow(rng.multinomial(tasks, mixture), sizes, mixture, tasks, rng)
        drawn = [
            rng.choice(row, size=count, replace=False) for row, count in zip(members, counts, strict=True) if count
        ]
        chosen = np.concatenate(drawn)
        if chosen.size < tasks:
            others = np.setdiff1d(np.arange(len(table)), chosen)
            extra = rng.choice(others, size=min(tasks - chosen.size, others.size), replace=False)
            chosen = np.concatenate([chosen, extra])
        lists.append(chosen)
    return Assignment.from_lists(lists)


def _redistribute_published_overflow(
    counts: Ints, sizes: Ints, mixture: NDArray[np.float64], tasks: int, rng: np.random.RandomState
) -> Ints:
    """Redraw the overflow among categories with free capacity; tasks that do not fit there may be dropped."""
    while True:
        overflow = int(np.maximum(counts - sizes, 0).sum())
        counts = np.minimum(counts, sizes)
        room = np.flatnonzero(counts < sizes)
        if not overflow or not room.size:
            return np.asarray(counts)
        extra = rng.multinomial(overflow, mixture[room] / mixture[room].sum())
        counts[room] += np.minimum(extra, (sizes - counts)[room])
        if counts.sum() >= tasks:
            return np.asarray(counts)


def assign_by_coverage(items: int, clients: int, low: int, center: int, high: int, dispersion: float) -> Assignment:
    """Coverage: draw Beta sizes, then walk over the items and give each to distinct clients, or to fewer if clients run out."""
    overlap = float(np.clip(clients * center / items, clients * low / items, clients * high / items))
    rng = np.random.default_rng(_SEED)
    sizes = _sample_published_sizes(clients, low, center, high, dispersion, round(overlap * items), rng)
    total = int(sizes.sum())
    copies = np.full(items, int(np.floor(overlap)))
    more = total - int(copies.sum())
    if not 0 <= more <= items:
        copies[:] = total // items
        more = total - int(copies.sum())
    if more > 0:
        copies[rng.choice(items, size=more, replace=False)] += 1
    room = sizes.copy()
    held: list[set[int]] = [set() for _ in sizes]
    for item, wanted in enumerate(copies.tolist()):
        open_ = np.flatnonzero(room > 0)
        take = min(wanted, open_.size)
        if take:
            weight = room[open_].astype(np.float64)
            for client in rng.choice(open_, size=take, replace=False, p=weight / weight.sum()):
                held[client].add(item)
                room[client] -= 1
    open_ = np.flatnonzero(room > 0)
    for _ in range(total - sum(len(row) for row in held)):
        if not open_.size:
            break
        item = int(rng.integers(0, items))
        client = rng.choice(open_)
        held[client].add(item)
        room[client] -= 1
        open_ = np.flatnonzero(room > 0)
    return Assignment.from_lists(held)


def _sample_published_sizes(
    clients: int, low: int, center: int, high: int, dispersion: float, total: int, rng: np.random.Generator
) -> Ints:
    """Scale, clip, round by largest remainder and clip again; then correct the sum at the first clients within the bounds."""
    if low == high:
        return np.full(clients, low, dtype=np.int64)
    share = min(max((center - low) / (high - low), 1e-6), 1 - 1e-6)
    spread = max(dispersion, 2e-3)
    sizes = low + rng.beta(share * spread, (1 - share) * spread, size=clients) * (high - low)
    sizes = np.clip(sizes * (total / sizes.sum()), low, high)
    whole = np.floor(sizes).astype(np.int64)
    order = np.argsort(-(sizes - whole))
    missing = total - int(whole.sum())
    if missing > 0:
        whole[order[:missing]] += 1
    elif missing < 0:
        whole[order[::-1][:-missing]] -= 1
    whole = np.clip(whole, low, high)
    missing = total - int(whole.sum())
    step = 1 if missing > 0 else -1
    open_ = np.flatnonzero(whole < high if step > 0 else whole > low)
    whole[open_[: abs(missing)]] += step
    for turn in range(abs(total - int(whole.sum()))):
        open_ = np.flatnonzero(whole < high if step > 0 else whole > low)
        whole[open_[turn % open_.size]] += step
    return np.asarray(whole)


def assign_by_hardness(solved: Ints, unsolved: Ints, clients: int, tasks: int, dispersion: float) -> Assignment:
    """Hardness: every client draws its quota of solved and as many unsolved tasks, and is filled up with the remaining ones. All
    draw with the same seed, so clients with equal quotas hold the same tasks."""
    items = solved.size + unsolved.size
    overlap = float(np.clip(clients * (tasks // 2) / items, 0.0, clients * tasks / items))
    lists = []
    for client in range(clients):
        rng = np.random.default_rng(_SEED)
        quotas = _sample_published_sizes(clients, 0, tasks // 2, tasks, dispersion, round(overlap * items), rng)
        quota = int(quotas[client])
        easy, hard = solved[:0], unsolved[:0]
        if quota and solved.size:
            easy = rng.choice(solved, size=min(quota, solved.size), replace=False)
        if quota and unsolved.size:
            hard = rng.choice(unsolved, size=min(quota, unsolved.size), replace=False)
        chosen = np.concatenate([easy, hard])
        missing = tasks - chosen.size
        if missing > 0:
            rest = np.concatenate([np.setdiff1d(solved, easy), np.setdiff1d(unsolved, hard)])
            chosen = np.concatenate([chosen, rng.choice(rest, size=min(missing, rest.size), replace=False)])
        lists.append(chosen[: max(tasks, items // clients)])
    return Assignment.from_lists(lists)
