"""Preference and coverage together: categories by Algorithm 2, sizes by Algorithm 3."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from fedagentgym.base.streams import StreamBatch
from fedagentgym.partitions.arithmetic.draws import iter_batches, softmax
from fedagentgym.partitions.arithmetic.sizing import sample_beta_sizes
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.samplers.coverage import Coverage
from fedagentgym.partitions.samplers.preference import Preference, sample_by_category
from fedagentgym.partitions.samplers.sampler import Axis, Sampler
from fedagentgym.partitions.table import TaskTable


class PreferenceCoverage(Sampler):
    """Varies two axes at once, each by its own parameter: omega the mixtures, xi the sizes. How many clients hold a task is
    left to chance, since the preferences already determine which clients can hold it."""

    axes: ClassVar[frozenset[Axis]] = frozenset({"mixture", "sizes"})

    omega: float = Field(
        ge=0, description="standard deviation of the noise on the log-probabilities: 0.1 mild, 0.9 strong"
    )
    xi: float = Field(gt=0, description="concentration of the sizes: 256 nearly equal, 1 strongly spread")
    mean_tasks: float = Field(gt=0, description="mean tasks per client")
    min_tasks: int | None = Field(default=None, ge=0, description="fewest tasks of a client; None: a fifth of the mean")
    max_tasks: int | None = Field(
        None, ge=1, description="most tasks of a client; None: three times the mean or the pool"
    )
    anchor: Literal["log", "logit"] = Field(default="log", description="what the noise is added to")

    def sample(self, table: TaskTable, clients: int, seed: int) -> Assignment:
        sizing = Coverage(xi=self.xi, mean_tasks=self.mean_tasks, min_tasks=self.min_tasks, max_tasks=self.max_tasks)
        bounds = sizing.compute_bounds(len(table), clients)
        sizes = sample_beta_sizes(seed, "preference_coverage", clients, *bounds, self.xi)
        mixing = Preference(omega=self.omega, anchor=self.anchor, tasks_per_client=1)
        anchors = mixing.compute_anchors(table.counts)
        parts = []
        for part in iter_batches(clients, int(bounds.mean) + 1 + len(anchors)):
            streams = StreamBatch(seed, "preference_coverage", first=part.start, count=len(part))
            weights = softmax(anchors + self.omega * streams.normal(len(anchors)))
            parts.append(sample_by_category(table, streams, weights, sizes[part.start : part.stop]))
        return Assignment.concatenate(parts)
