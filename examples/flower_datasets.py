"""A client split as a partitioner of flwr-datasets, which works with the library's FederatedDataset and its metrics.

flwr-datasets 0.6 needs datasets below 5: pip install 'fedagentgym[flwr-datasets]' in a separate virtual environment.
"""

from __future__ import annotations

import tempfile

from flwr_datasets import FederatedDataset
from flwr_datasets.metrics import compute_counts

import fedagentgym
from fedagentgym.bridges.flower_datasets import SplitPartitioner


def main() -> None:
    split = fedagentgym.federate(
        "fedagentgym/Guess-v0", partition="preference", clients=4, tasks_per_client=20, omega=0.9
    )
    with tempfile.TemporaryDirectory() as folder:
        split.pool.to_dataset().to_parquet(f"{folder}/train.parquet")
        federated = FederatedDataset(dataset=folder, partitioners={"train": SplitPartitioner(split)})
        partition = federated.load_partition(3)
        print(sorted(partition["task"]) == sorted(split.client(3).tasks), len(partition))
        print(compute_counts(federated.partitioners["train"], "category"))


if __name__ == "__main__":
    main()
