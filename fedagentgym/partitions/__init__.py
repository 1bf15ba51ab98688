"""The division of tasks and environment variants among clients. This package imports no code for models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedagentgym.base.imports import attach

if TYPE_CHECKING:
    from fedagentgym.partitions.adapters import get_row_indices as get_row_indices
    from fedagentgym.partitions.adapters import import_client_split as import_client_split
    from fedagentgym.partitions.assignment import Assignment as Assignment
    from fedagentgym.partitions.client_split import Client as Client
    from fedagentgym.partitions.client_split import ClientSplit as ClientSplit
    from fedagentgym.partitions.client_split import federate as federate
    from fedagentgym.partitions.client_split import load_client_split as load_client_split
    from fedagentgym.partitions.division import Sampler as Sampler
    from fedagentgym.partitions.record import SplitRecord as SplitRecord
    from fedagentgym.partitions.samplers import SAMPLERS as SAMPLERS
    from fedagentgym.partitions.side_by_side import plot_side_by_side as plot_side_by_side
    from fedagentgym.partitions.table import TaskTable as TaskTable

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".adapters": ("get_row_indices", "import_client_split"),
        ".assignment": ("Assignment",),
        ".side_by_side": ("plot_side_by_side",),
        ".client_split": ("Client", "ClientSplit", "federate", "load_client_split"),
        ".record": ("SplitRecord",),
        ".samplers": ("SAMPLERS",),
        ".division": ("Sampler",),
        ".table": ("TaskTable",),
    },
)
