"""Our splits in other stacks, others' divisions in ours."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

import pytest

from fedagentgym.base.errors import DataError, MissingExtraError, OptionError
from fedagentgym.partitions.adapters import (
    SplitPartitioner,
    get_client_dataset,
    get_row_indices,
    import_client_split,
    make_flower_partitioner,
)
from fedagentgym.partitions.client_split import ClientSplit, federate, load_client_split

GUESS = "fedagentgym/Guess-v0"


class Rows:
    """What the adapters need of a data set."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, numbers: list[int]) -> Rows:
        return Rows([self.rows[number] for number in numbers])


@pytest.fixture(scope="module")
def client_split() -> ClientSplit:
    return federate(GUESS, partition="preference", clients=5, tasks_per_client=12, omega=0.9)


def test_row_indices_name_the_tasks(client_split: ClientSplit) -> None:
    rows = get_row_indices(client_split)
    for client, numbers in zip(client_split, rows, strict=True):
        assert numbers == sorted(numbers)
        assert {client_split.pool.ids[number] for number in numbers} == set(client.tasks)


def test_partitioner(client_split: ClientSplit) -> None:
    partitioner = SplitPartitioner(client_split)
    assert partitioner.num_partitions == 5 and not partitioner.is_dataset_assigned()
    with pytest.raises(OptionError, match=r"assign partitioner\.dataset first"):
        partitioner.load_partition(0)
    with pytest.raises(DataError, match="has 3 rows"):
        partitioner.dataset = Rows([1, 2, 3])
    partitioner.dataset = Rows(list(range(600)))
    assert partitioner.load_partition(3).rows == get_row_indices(client_split)[3]
    with pytest.raises(OptionError, match="there is no client '5'"):
        partitioner.load_partition(5)
    with pytest.raises(OptionError, match="already"):
        partitioner.dataset = Rows(list(range(600)))


def test_flower_takes_the_partitioner_as_its_own(client_split: ClientSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in of the package, whose `FederatedDataset` asks isinstance(partitioner, Partitioner)."""
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(MissingExtraError, match="pip install flwr-datasets"):
        make_flower_partitioner(client_split)
    package, module = ModuleType("flwr_datasets"), ModuleType("flwr_datasets.partitioner")

    class Partitioner(ABC):
        @abstractmethod
        def load_partition(self, partition_id: int) -> object: ...

    module.Partitioner = Partitioner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr_datasets", package)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", module)
    assert isinstance(make_flower_partitioner(client_split), Partitioner)


def test_a_hugging_face_data_set(client_split: ClientSplit) -> None:
    datasets = pytest.importorskip("datasets")
    whole: Any = datasets.Dataset.from_dict({"task": list(client_split.pool.ids)})
    part = get_client_dataset(client_split, 2, whole)
    assert set(part["task"]) == set(client_split.client(2).tasks)


def test_import_of_a_mapping(client_split: ClientSplit, tmp_path: Any) -> None:
    held = {index: list(client.tasks) for index, client in enumerate(client_split)}
    imported = import_client_split(GUESS, held, roles={"public": list(client_split.pool.ids[:0])})
    assert [client.tasks for client in imported] == [client.tasks for client in client_split]
    path = imported.save(tmp_path / "imported.json")
    checks = {check.name: check.ok for check in load_client_split(path).verify()}
    assert checks["re-sampling"] is None and checks["content"] and checks["evaluation"]
    assert import_client_split(GUESS, [["guess/train/00003"], []]).client(1).tasks == ()


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({0: ["guess/train/99999"]}, "client 0 names 1 tasks that the pool does not hold: guess/train/99999"),
        ({0: ["guess/train/00001"] * 2}, "holds a task twice"),
        ({1: ["guess/train/00001"]}, "numbered 0 to 0, found"),
        ({}, "has no clients"),
        ({0: ["guess/val/00001"]}, "the pool does not hold"),
    ],
)
def test_bad_mappings(held: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        import_client_split(GUESS, held)
