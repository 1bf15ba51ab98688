"""Our splits in other stacks, others' divisions in ours."""

from __future__ import annotations

from typing import Any

import pytest

from fedagentgym.base.errors import DataError
from fedagentgym.partitions.adapters import (
    get_row_indices,
    import_client_split,
)
from fedagentgym.partitions.client_split import ClientSplit, federate, load_client_split

GUESS = "fedagentgym/Guess-v0"


@pytest.fixture(scope="module")
def client_split() -> ClientSplit:
    return federate(GUESS, partition="preference", clients=5, tasks_per_client=12, omega=0.9)


def test_row_indices_name_the_tasks(client_split: ClientSplit) -> None:
    rows = get_row_indices(client_split)
    for client, numbers in zip(client_split, rows, strict=True):
        assert numbers == sorted(numbers)
        assert {client_split.pool.ids[number] for number in numbers} == set(client.tasks)


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
