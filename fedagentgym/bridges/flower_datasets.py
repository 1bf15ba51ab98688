"""flwr-datasets: a client split as a partitioner, for `FederatedDataset` and for the library's metrics and figures.

Tested with flwr-datasets 0.6.1, which requires datasets below 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedagentgym.base.errors import DataError, show_value
from fedagentgym.base.imports import require
from fedagentgym.partitions.client_split import ClientSplit

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["SplitPartitioner"]

_Partitioner: Any = require("flwr_datasets.partitioner", "flwr-datasets").Partitioner


class SplitPartitioner(_Partitioner):  # type: ignore[misc]
    """A client split as a partitioner of flwr-datasets.

    A row is identified by the task id in a column, as `pool.to_dataset()` writes it. So the order of rows does not matter, which
    `FederatedDataset` shuffles by default.

    Args:
        client_split: The split.
        by: Name of the column of task ids.

    Examples:
        >>> FederatedDataset(dataset="me/tasks", partitioners={"train": SplitPartitioner(split)})  # doctest: +SKIP
    """

    def __init__(self, client_split: ClientSplit, *, by: str = "task") -> None:
        super().__init__()
        self._client_split, self._by = client_split, by
        self._places: dict[str, int] | None = None

    @property
    def num_partitions(self) -> int:
        """Number of clients."""
        return len(self._client_split)

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the rows of one client, in the order of its tasks.

        Args:
            partition_id: Number of the client.

        Returns:
            The rows.

        Raises:
            DataError: If the data set has no column of task ids, or lacks a task of the client.
        """
        if self._places is None:  # computed once, since a partitioner has one data set
            columns = self.dataset.column_names
            if self._by not in columns:
                raise DataError(
                    f"the data set has no column {self._by!r} with task ids, it has {show_value(columns)}: "
                    "pool.to_dataset() makes one, or name the column with by="
                )
            found: dict[str, int] = {}
            for place, task in enumerate(self.dataset[self._by]):
                if found.setdefault(task, place) != place:
                    raise DataError(f"the column {self._by!r} of the data set names the task {task!r} twice")
            self._places = found
        places = self._places
        tasks = self._client_split.client(partition_id).tasks
        if missing := [task for task in tasks if task not in places]:
            raise DataError(
                f"the data set lacks {len(missing)} of the {len(tasks)} tasks of client {partition_id}, "
                f"the first is {missing[0]!r}: it was not made from the pool that the split divides"
            )
        return self.dataset.select([places[task] for task in tasks])
