"""Coverage: clients hold different numbers of tasks (Algorithm 3 of the FedAgent paper)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from fedagentgym.base.errors import OptionError
from fedagentgym.base.process import get_logger
from fedagentgym.base.streams import stream
from fedagentgym.partitions.assignment import Assignment, assign_balanced, compute_total, sample_beta_sizes
from fedagentgym.partitions.division import Axis, Compat, Sampler
from fedagentgym.partitions.table import TaskTable


class Bounds(NamedTuple):
    """T, the sum of all sizes, and the minimum, mean and maximum of a size: (L_min, L_avg, L_max)."""

    total: int
    low: int
    mean: float
    high: int


class Coverage(Sampler):
    """Sizes follow a Beta distribution on [min_tasks, max_tasks] around mean_tasks. Floor or ceil of `overlap` clients hold
    each task, and no client holds a task twice. The mixture of categories is left to chance."""

    axes: ClassVar[frozenset[Axis]] = frozenset({"sizes"})

    xi: float = Field(gt=0, description="concentration of the sizes: 256 nearly equal, 1 strongly spread")
    mean_tasks: float | None = Field(
        default=None, gt=0, description="mean tasks per client; by default overlap * pool / clients"
    )
    min_tasks: int | None = Field(
        default=None, ge=0, description="fewest tasks of a client; by default a fifth of the mean, at least 1"
    )
    max_tasks: int | None = Field(
        None, ge=1, description="most tasks of a client; by default three times the mean, or the pool if that is less"
    )
    overlap: float | None = Field(
        default=None,
        gt=0,
        description="mean number of clients that hold a task; by default clients * mean_tasks / pool",
    )
    compat: Compat | None = Field(
        default=None, description="fedagent: the sampling of the FedAgent authors' code, with its seed"
    )

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        bounds = self.compute_bounds(len(table), clients)
        if self.compat == "fedagent":
            from fedagentgym.partitions.compat import assign_by_coverage

            return assign_by_coverage(len(table), clients, bounds.low, round(bounds.mean), bounds.high, self.xi)
        return sample_coverage(len(table), clients, bounds, self.xi, seed, "coverage")

    def compute_bounds(self, items: int, clients: int) -> Bounds:
        if self.mean_tasks is None and self.overlap is None:
            raise OptionError("coverage needs mean_tasks (or tasks_per_client), or overlap, or both")
        mean = self.mean_tasks if self.mean_tasks is not None else float(self.overlap or 0.0) * items / clients
        low = self.min_tasks if self.min_tasks is not None else max(1, int(mean // 5))
        high = self.max_tasks if self.max_tasks is not None else min(int(np.ceil(3 * mean)), items)
        total = compute_total(clients, mean, self.overlap, items)
        if self.mean_tasks is not None and total != compute_total(clients, mean, None, items):
            text = (
                "coverage: overlap %g over %s tasks gives clients a mean of %.6g tasks, not the mean_tasks %g asked for"
            )
            get_logger(__name__).warning(text, self.overlap, f"{items:,}", total / clients, mean)
        return validate_bounds(Bounds(total, low, mean, high), items, clients, "tasks")


def validate_bounds(bounds: Bounds, items: int, clients: int, what: str) -> Bounds:
    """Check the conditions on the bounds of line 2 of Algorithm 3."""
    total, low, mean, high = bounds
    if not low <= mean <= high:
        raise OptionError(f"the mean of {mean:g} {what} per client must lie between {low:,} and {high:,}")
    if high > items:
        raise OptionError(f"a client may hold up to {high:,} {what}, but there are {items:,}: lower the maximum")
    if not clients * low <= total <= clients * high:
        raise OptionError(
            f"{total:,} {what} cannot be spread over {clients:,} clients with {low:,} to {high:,} each: "
            f"the total must lie between {clients * low:,} and {clients * high:,}"
        )
    return bounds


def sample_coverage(items: int, clients: int, bounds: Bounds, dispersion: float, seed: int, purpose: str) -> Assignment:
    """Draw the sizes and give out the items: lines 3-14 of Algorithm 3."""
    sizes = sample_beta_sizes(seed, purpose, clients, *bounds, dispersion)
    return assign_balanced(sizes, items, stream(seed, purpose, "deal"))
