"""Statistics of a split: sizes, mixtures, overlap, Jaccard similarity, dispersion, and a comparison with random draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.rounding import count_things, format_fixed
from fedagentgym.base.tables import make_table
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.table import TaskTable

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_JACCARD_CLIENTS = 500


class ChanceComparison(NamedTuple):
    """The deviation of counts from drawing without replacement: `ratio` is expected to be 1, `z` counts standard deviations."""

    ratio: float
    z: float


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """Measures of one assignment. Arrays have one entry or row per client, but `pool_shares` one per category and `copies` one
    per task."""

    sampler: str
    tasks_in_pool: int
    sizes: Ints
    categories: tuple[str, ...]
    counts: Ints
    pool_shares: Floats
    distances: Floats
    copies: Ints
    jaccard_mean: float
    jaccard_max: float
    solved: Ints | None
    pool_solved: float | None

    @property
    def table(self) -> Any:
        """One row per client: `client`, `tasks`, `distance`, and the number of tasks of each category. It is a DataFrame, or a
        list of dictionaries if pandas is not installed."""
        counts = (dict(zip(self.categories, row, strict=True)) for row in self.counts.tolist())
        rows = enumerate(zip(self.sizes.tolist(), self.distances.tolist(), counts, strict=True))
        return make_table(
            [{"client": client, "tasks": size, "distance": distance, **held} for client, (size, distance, held) in rows]
        )

    def __repr__(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        sizes = f"{low:,} each" if low == high else f"{low:,} to {high:,}"
        return (
            f"Statistics({count_things(len(self.sizes), 'client')} of {count_things(self.tasks_in_pool, 'task')} by"
            f" {self.sampler}: {sizes}, "
            f"distance to the pool {format_fixed(self.distances.mean(), 3)}, Jaccard {format_fixed(self.jaccard_mean, 3)})"
        )

    @property
    def shares(self) -> Floats:
        """Category mixture of every client."""
        return np.asarray(self.counts / np.maximum(self.sizes, 1)[:, None], dtype=np.float64)

    @property
    def solved_shares(self) -> Floats | None:
        return None if self.solved is None else np.asarray(self.solved / np.maximum(self.sizes, 1), dtype=np.float64)

    @property
    def mixture_dispersion(self) -> float:
        """Total variance of the mixtures over clients: the sum over categories of the variance of the category's share."""
        return float(self.shares.var(axis=0).sum())

    @property
    def size_dispersion(self) -> float:
        """Standard deviation of the sizes, divided by their mean."""
        return float(self.sizes.std() / max(self.sizes.mean(), 1e-12))

    @property
    def hardness_dispersion(self) -> float | None:
        """Standard deviation of the solved share over clients."""
        shares = self.solved_shares
        return None if shares is None else float(shares.std())

    @property
    def worst_client(self) -> int:
        """The number of the client whose mixture is farthest from the pool's."""
        return int(self.distances.argmax())

    def dispersion(self) -> tuple[str, float]:
        """The name and the value of the measure that the sampler's parameter controls."""
        if self.sampler == "coverage":
            return "standard deviation of sizes / mean", self.size_dispersion
        if self.sampler == "hardness" and self.hardness_dispersion is not None:
            return "standard deviation of solved share", self.hardness_dispersion
        return "total variance of mixtures", self.mixture_dispersion

    def to_dict(self) -> dict[str, Any]:
        """The measures as plain numbers, for scripts."""
        name, value = self.dispersion()
        result: dict[str, Any] = {
            "clients": len(self.sizes),
            "tasks_in_pool": self.tasks_in_pool,
            "assignments": int(self.sizes.sum()),
            "sizes": {
                "min": int(self.sizes.min()),
                "mean": float(self.sizes.mean()),
                "max": int(self.sizes.max()),
                "std": float(self.sizes.std()),
            },
            "mixture": {
                "pool": dict(zip(self.categories, self.pool_shares.tolist(), strict=True)),
                "clients": dict(zip(self.categories, self.shares.mean(axis=0).tolist(), strict=True)),
                "mean_distance": float(self.distances.mean()),
                "max_distance": float(self.distances.max()),
                "worst_client": self.worst_client,
            },
            "overlap": {
                "min_copies": int(self.copies.min()),
                "mean_copies": float(self.copies.mean()),
                "max_copies": int(self.copies.max()),
                "covered": float((self.copies > 0).mean()),
            },
            "jaccard": {"mean": self.jaccard_mean, "max": self.jaccard_max},
            "dispersion": {"measure": name, "value": value},
        }
        if self.solved is not None and self.solved_shares is not None:
            shares = self.solved_shares
            result["hardness"] = {
                "pool_solved": self.pool_solved,
                "min": float(shares.min()),
                "mean": float(shares.mean()),
                "max": float(shares.max()),
                "std": float(shares.std()),
            }
        return result


def compute_statistics(assignment: Assignment, table: TaskTable, sampler: str) -> Statistics:
    """Compute the measures of an assignment of the tasks of a table."""
    counts = count_labels(assignment, table.codes, len(table.names))
    sizes = assignment.sizes
    pool_shares = table.counts / max(len(table), 1)
    distances = np.abs(counts / np.maximum(sizes, 1)[:, None] - pool_shares).sum(axis=1) / 2
    solved = None if table.solved is None else count_labels(assignment, table.solved.astype(np.int64), 2)[:, 1]
    mean, most = jaccard(assignment, len(table))
    return Statistics(
        sampler=sampler,
        tasks_in_pool=len(table),
        sizes=sizes,
        categories=table.names,
        counts=counts,
        pool_shares=np.asarray(pool_shares, dtype=np.float64),
        distances=np.asarray(distances, dtype=np.float64),
        copies=assignment.count_copies(len(table)),
        jaccard_mean=mean,
        jaccard_max=most,
        solved=solved,
        pool_solved=None if table.solved is None else float(table.solved.mean()),
    )


def count_labels(assignment: Assignment, labels: Ints, count: int) -> Ints:
    """Return how many items of each label every client holds."""
    cells = assignment.owners * count + labels[assignment.items]
    return np.bincount(cells, minlength=len(assignment) * count).reshape(len(assignment), count)


def jaccard(assignment: Assignment, items: int) -> tuple[float, float]:
    """Mean and greatest |A and B| / |A or B| over pairs of clients. Of more than 500 clients, 500 at equal distances are used."""
    from scipy.sparse import csr_matrix

    clients = len(assignment)
    if clients < 2:
        return 0.0, 0.0
    chosen = np.unique(np.linspace(0, clients - 1, min(clients, _JACCARD_CLIENTS)).round().astype(np.int64))
    part = Assignment.from_lists(assignment[client] for client in chosen.tolist())
    held: Any = csr_matrix(
        (np.ones(part.items.size, dtype=np.int32), part.items, part.offsets), shape=(len(part), items)
    )
    common = (held @ held.T).toarray()
    union = part.sizes[:, None] + part.sizes[None, :] - common
    first, second = np.triu_indices(len(part), 1)
    values = common[first, second] / np.maximum(union[first, second], 1)
    return float(values.mean()), float(values.max())


def compare_with_chance(assignment: Assignment, labels: Ints, strata: Ints) -> ChanceComparison:
    """Compare the variation of labels between clients with that of random draws, given each client's tasks per stratum.

    Pearson's chi-square sum over clients, strata and labels is compared with its mean and variance under drawing without
    replacement.
    """
    label_total, stratum_total = int(labels.max(initial=0)) + 1, int(strata.max(initial=0)) + 1
    observed = count_labels(assignment, strata * label_total + labels, stratum_total * label_total)
    observed = observed.reshape(len(assignment), stratum_total, label_total)
    pool = np.bincount(strata * label_total + labels, minlength=stratum_total * label_total)
    pool = pool.reshape(stratum_total, label_total)
    statistic = expected = variance = 0.0
    for stratum in range(stratum_total):
        present = np.flatnonzero(pool[stratum])
        size = int(pool[stratum].sum())
        drawn = observed[:, stratum, :].sum(axis=1)
        open_ = (drawn > 0) & (drawn < size)
        if present.size < 2 or not open_.any():
            continue
        share = pool[stratum, present] / size
        n = drawn[open_].astype(np.float64)
        shrink = n * (size - n) / (size - 1)
        deviation = observed[open_, stratum][:, present] - n[:, None] * share
        statistic += float((deviation**2 / (shrink[:, None] * share)).sum())
        free = present.size - 1
        expected += n.size * free
        variance += float((2 * free + np.maximum((1 / share).sum() - present.size**2 - 2 * free, 0) / n).sum())
    if not expected:
        return ChanceComparison(1.0, 0.0)
    return ChanceComparison(statistic / expected, (statistic - expected) / math.sqrt(variance))
