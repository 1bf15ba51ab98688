"""Run by `test_bridges_apart.py`: our samplers against the partitioners of the installed flwr-datasets, on random tasks.

Equal where the rule is deterministic; equal in distribution, by counting, where it draws.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from datasets import Dataset, disable_progress_bars
from flwr_datasets.partitioner import (
    GroupedNaturalIdPartitioner,
    NaturalIdPartitioner,
    Partitioner,
    PathologicalPartitioner,
    ShardPartitioner,
)

import fedagentgym
from fedagentgym.base.errors import OptionError
from fedagentgym.envs.pool import TaskPool

GUESS = "fedagentgym/Guess-v0"
CASES = 30
REMAINDERS = {"smaller": "allow-smaller", "bigger": "allow-bigger", "drop": "drop-reminder", "refuse": "strict"}
Row = dict[str, Any]


def make_rows(source: random.Random) -> list[Row]:
    names = "abcdef"[: source.randint(2, 6)]
    weights = [source.random() + 0.05 for _ in names]
    users = source.randint(1, 15)
    return [
        {"id": f"t/{number:04d}", "category": source.choices(names, weights)[0], "user": source.randrange(users)}
        for number in range(source.randint(10, 120))
    ]


def divide_with_ours(rows: Sequence[Row], name: str, clients: int | None, **parameters: Any) -> list[list[Row]] | None:
    pool = TaskPool.from_records([{**row, "payload": (9, 1)} for row in rows], env=GUESS)
    by_id = {row["id"]: row for row in rows}
    try:
        made = fedagentgym.federate(GUESS, partition=name, clients=clients, pool=pool, **parameters)
    except OptionError:
        return None
    return [[by_id[task] for task in client.tasks] for client in made]


def divide_with_theirs(rows: Sequence[Row], partitioner: Partitioner) -> list[list[Row]] | None:
    """None where they refuse; shards of less than a task end in a division by zero there."""
    partitioner.dataset = Dataset.from_list(list(rows))
    try:
        return [partitioner.load_partition(number).to_list() for number in range(partitioner.num_partitions)]
    except (ValueError, ZeroDivisionError):
        return None


def count(clients: list[list[Row]] | None) -> list[Counter[str]] | None:
    return None if clients is None else [Counter(row["category"] for row in rows) for rows in clients]


def check_natural(source: random.Random) -> None:
    rows = make_rows(source)
    ours = divide_with_ours(rows, "natural", None, by="user")
    theirs = divide_with_theirs(rows, NaturalIdPartitioner(partition_by="user"))
    assert name_ids(ours) == name_ids(theirs)
    size, (mode, name) = source.randint(1, 5), source.choice(list(REMAINDERS.items()))
    ours = divide_with_ours(rows, "natural", None, by="user", group_size=size, remainder=mode)
    theirs = divide_with_theirs(
        rows, GroupedNaturalIdPartitioner(partition_by="user", group_size=size, mode=name, sort_unique_ids=True)
    )
    assert name_ids(ours) == name_ids(theirs), (size, mode)


def name_ids(clients: list[list[Row]] | None) -> list[list[str]] | None:
    return None if clients is None else [sorted(row["id"] for row in rows) for rows in clients]


def check_pathological(source: random.Random) -> None:
    """If the categories follow from the number of the client, every client has as many tasks of each as theirs."""
    rows, clients, wanted = make_rows(source), source.randint(1, 10), source.randint(1, 4)
    ours = divide_with_ours(rows, "pathological", clients, categories_per_client=wanted, assignment="deterministic")
    theirs = divide_with_theirs(rows, PathologicalPartitioner(clients, "category", wanted, "deterministic"))
    assert count(ours) == count(theirs), (clients, wanted)


def check_shards(source: random.Random) -> None:
    """Sizes are theirs always; with one shard a client, the mixtures are the same ones in another order."""
    rows, clients = make_rows(source), source.randint(1, 10)
    each, size = source.choice([None, 1, 2, 3]), source.choice([None, 1, 4, 9])
    keep = source.random() < 0.5
    ours = divide_with_ours(rows, "shards", clients, shards_per_client=each, shard_size=size, keep_incomplete=keep)
    theirs = divide_with_theirs(rows, ShardPartitioner(clients, "category", each, size, keep))
    case = (len(rows), clients, each, size, keep)
    assert (ours is None) == (theirs is None), case
    if ours is None or theirs is None:
        return
    used = size or len(rows) // (clients * (each or 1))
    if not keep or len(rows) % used == 0:  # a smaller shard goes to any client, or to none
        assert [len(one) for one in ours] == [len(one) for one in theirs], case
    blocks = len(rows) // 5
    ours = divide_with_ours(rows, "shards", blocks, shard_size=5)
    theirs = divide_with_theirs(rows, ShardPartitioner(blocks, "category", None, 5))
    assert ours is not None and theirs is not None
    compositions = [Counter(tuple(sorted(one.items())) for one in count(found) or []) for found in (ours, theirs)]
    assert compositions[0] == compositions[1]


def check_draws(mode: str) -> None:
    """The frequency of each pair of categories at a client: ours and theirs differ by no more than chance makes them differ."""
    rows = [{"id": f"t/{number:05d}", "category": "abcde"[number % 5], "user": 0} for number in range(6000)]
    ours = count(divide_with_ours(rows, "pathological", 600, categories_per_client=2, assignment=mode)) or []
    theirs = count(divide_with_theirs(rows, PathologicalPartitioner(600, "category", 2, mode))) or []
    seen = [Counter(tuple(sorted(one)) for one in found) for found in (ours, theirs)]
    pairs = set(seen[0]) | set(seen[1])
    assert len(pairs) == 10
    statistic = sum((seen[0][pair] - seen[1][pair]) ** 2 / (seen[0][pair] + seen[1][pair]) for pair in pairs)
    assert statistic < 33.7, (mode, statistic)  # chi-squared with 9 degrees of freedom: one in 10,000


def main() -> None:
    disable_progress_bars()
    for seed in range(CASES):
        for check in (check_natural, check_pathological, check_shards):
            check(random.Random(seed))
    for mode in ("random", "first-deterministic"):
        check_draws(mode)
    print(f"checked with flwr-datasets {version('flwr-datasets')}: {CASES} random pools")


if __name__ == "__main__":
    main()
