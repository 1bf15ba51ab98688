"""Same inputs, same bytes: golden digests, other processes, other hash seeds, other row orders."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedagentgym.base.encoding import bytes_digest
from fedagentgym.partitions.client_split import ClientSplit, federate
from fedagentgym.partitions.division import make_sampler, sample_clients
from fedagentgym.partitions.table import TaskTable
from tests.partitions.conftest import make_pool, make_table

GUESS = "fedagentgym/Guess-v0"
CALLS: dict[str, dict[str, Any]] = {
    "uniform": {"tasks_per_client": 20},
    "uniform overlap": {"partition": "uniform", "tasks_per_client": 20, "overlap": 1.5},
    "preference": {"tasks_per_client": 20, "omega": 0.9},
    "preference logit": {"partition": "preference", "tasks_per_client": 20, "omega": 0.9, "anchor": "logit"},
    "preference_dirichlet": {"tasks_per_client": 20, "omega": 0.3},
    "coverage": {"mean_tasks": 20, "xi": 1.0},
    "preference_coverage": {"mean_tasks": 20, "xi": 4.0, "omega": 0.5},
    "hardness": {"tasks_per_client": 20, "xi": 1.0},
    "dirichlet": {"beta": 0.3},
    "dirichlet equal": {"partition": "dirichlet", "beta": 0.1, "equal_size": True},
    "by_source": {"sources": {"fashion": 5, "garden": 3}},
}
GOLDEN = {
    "uniform": "047d78f41ba68705",
    "uniform overlap": "0ec76dbf2a57db3d",
    "preference": "569123c6e0a4b1b8",
    "preference logit": "2a9e75e2fe00666c",
    "preference_dirichlet": "5e8c244fbc0168b3",
    "coverage": "d8bf4b34fad847c4",
    "preference_coverage": "c42a87653fb46ba6",
    "hardness": "7d87e74d91aae962",
    "dirichlet": "75eb91b32aca8e6a",
    "dirichlet equal": "1afbdfb3b4d9f5a6",
    "by_source": "13795cab3234dee0",
}


def digest_of(name: str) -> str:
    parameters = dict(CALLS[name])
    sampler = make_sampler(parameters.pop("partition", name), parameters)
    drawn = sample_clients(sampler, make_table(400), 8, 11)
    return bytes_digest(drawn.offsets.astype("<i8").tobytes() + drawn.items.astype("<i8").tobytes())[7:23]


@pytest.mark.parametrize("name", CALLS)
def test_golden_digests(name: str) -> None:
    """These change only with a new version of a sampler, which the change log then names."""
    assert digest_of(name) == GOLDEN[name]


def split_digests() -> list[str]:
    """Digests of whole splits, for comparison between processes."""
    made = [
        federate(
            GUESS, partition="preference", clients=6, tasks_per_client=20, omega=0.9, roles={"public": 20, "server": 9}
        ),
        federate(GUESS, partition="coverage", clients=6, mean_tasks=20, xi=1.0),
        federate(GUESS, partition="hardness", clients=6, tasks_per_client=20, xi=1.0, labels="pool"),
        federate(GUESS, partition="dirichlet", clients=6, beta=0.2),
    ]
    return [client_split.digest for client_split in made]


def test_another_process_and_hash_seed_give_the_same_splits() -> None:
    code = "from tests.partitions.test_reproducible import split_digests; print('\\n'.join(split_digests()))"
    found = []
    for hash_seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        found.append(done.stdout.split())
    assert found[0] == found[1] == split_digests()


@pytest.mark.parametrize("name", ["uniform", "preference", "coverage", "hardness", "dirichlet"])
def test_the_order_of_rows_does_not_matter(name: str) -> None:
    """Ids are sorted first, so a pool in another order is divided into the same sets of ids."""
    parameters = CALLS[name]
    forward, backward = make_pool(300), make_pool(300, reverse=True)
    solved = {task: number % 5 < 2 for number, task in enumerate(forward.ids)}
    first, second = (
        federate(GUESS, partition=name, clients=6, pool=pool, labels=solved, **parameters)
        for pool in (forward, backward)
    )
    assert [set(client.tasks) for client in first] == [set(client.tasks) for client in second]


def test_category_names_decide_not_their_codes() -> None:
    table = make_table(300)
    names = tuple(reversed(table.names))
    pool = make_pool(300)
    swapped = type(pool)(
        env=pool.env,
        split="train",
        ids=pool.ids,
        categories=(names, (len(names) - 1 - pool.category_codes).astype(np.int32)),
        payload=lambda index: index,
        source=pool.source,
    )
    assert TaskTable.from_pool(swapped).names == table.names
    assert np.array_equal(TaskTable.from_pool(swapped).codes, TaskTable.from_pool(pool).codes)


def test_clients_can_be_asked_in_any_order() -> None:
    made: ClientSplit = federate(GUESS, partition="preference", clients=6, tasks_per_client=20, omega=0.9)
    backward = [made.client(index).tasks for index in reversed(range(6))]
    assert backward[::-1] == [client.tasks for client in made]
