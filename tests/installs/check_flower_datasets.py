"""Run by `test_bridges_apart.py`: our partitioner in the hands of the installed flwr-datasets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version

import matplotlib
from datasets import Dataset
from flwr_datasets import FederatedDataset
from flwr_datasets.metrics import compute_counts
from flwr_datasets.partitioner import Partitioner
from flwr_datasets.utils import divide_dataset  # noqa: F401 - the module checks partitioners by their class
from flwr_datasets.visualization import plot_comparison_label_distribution, plot_label_distributions

import fedagentgym
from fedagentgym.base.errors import DataError, FedAgentGymError
from fedagentgym.bridges.flower_datasets import SplitPartitioner

SPLIT = fedagentgym.federate("fedagentgym/Guess-v0", partition="preference", clients=5, tasks_per_client=12, omega=0.9)


def expect_error(kind: type[Exception], said: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert said in str(error), error
    else:
        raise AssertionError(f"no error that says {said!r}")


def give(dataset: Dataset, **options: str) -> SplitPartitioner:
    made = SplitPartitioner(SPLIT, **options)
    made.dataset = dataset
    return made


def main() -> None:
    matplotlib.use("Agg")
    whole = SPLIT.pool.to_dataset()
    assert isinstance(SplitPartitioner(SPLIT), Partitioner)
    with tempfile.TemporaryDirectory() as folder:
        whole.to_parquet(f"{folder}/train.parquet")
        for shuffle in (True, False):
            federated = FederatedDataset(
                dataset=folder, partitioners={"train": SplitPartitioner(SPLIT)}, shuffle=shuffle
            )
            for client in SPLIT:
                assert federated.load_partition(client.index)["task"][:] == list(client.tasks)
        partitioner = federated.partitioners["train"]
    counts = compute_counts(partitioner, "category")
    for client in SPLIT:
        assert {name: int(n) for name, n in counts.loc[client.index].items() if n} == client.pool.categories
    plot_label_distributions(partitioner, label_name="category")
    plot_comparison_label_distribution([partitioner, give(whole)], label_name="category")

    renamed = whole.rename_column("task", "name")
    expect_error(DataError, "no column 'task'", lambda: give(renamed).load_partition(0))
    assert give(renamed, by="name").load_partition(1)["name"][:] == list(SPLIT.client(1).tasks)
    expect_error(DataError, "lacks", lambda: give(whole.select([0])).load_partition(0))
    expect_error(DataError, "twice", lambda: give(whole.select([0, 0])).load_partition(0))
    expect_error(FedAgentGymError, "no client", lambda: give(whole).load_partition(5))
    print("checked with flwr-datasets", version("flwr-datasets"), "and datasets", version("datasets"))


if __name__ == "__main__":
    main()
