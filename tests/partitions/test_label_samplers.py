"""The samplers that Flower's users know: pathological, shards, natural clients and groups of them."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagentgym.base.errors import DataError, OptionError, UnknownNameError
from fedagentgym.envs.pool import TaskPool
from fedagentgym.partitions.assignment import Assignment
from fedagentgym.partitions.client_split import federate, load_client_split
from fedagentgym.partitions.division import make_sampler, sample_clients
from fedagentgym.partitions.statistics import count_labels
from fedagentgym.partitions.table import TaskTable
from tests.partitions.conftest import make_table

GUESS = "fedagentgym/Guess-v0"
FIVE = {"a": 0.3, "b": 0.25, "c": 0.25, "d": 0.1, "e": 0.1}


def draw(name: str, table: TaskTable, clients: int, seed: int = 0, **parameters: Any) -> Assignment:
    return sample_clients(make_sampler(name, parameters), table, clients, seed)


def make_user_pool(users: list[str | int], **more: Any) -> TaskPool:
    rows = [{"category": "ab"[place % 2], "payload": (8, 3), "user": user} for place, user in enumerate(users)]
    return TaskPool.from_records([{**row, **more} for row in rows], env=GUESS)


# ---- pathological -----------------------------------------------------------------------------------------------


@given(
    mode=st.sampled_from(["random", "first-deterministic", "deterministic"]),
    clients=st.integers(1, 30),
    wanted=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_pathological_clients_have_exactly_their_categories(mode: str, clients: int, wanted: int, seed: int) -> None:
    table = make_table(600, FIVE)
    drawn = draw("pathological", table, clients, seed, categories_per_client=wanted, assignment=mode)
    counts = count_labels(drawn, table.codes, 5)
    assert np.all((counts > 0).sum(axis=1) == wanted)
    assert drawn.count_copies(600).max() == 1
    for category, total in zip(counts.T, table.counts, strict=True):
        parts = category[category > 0]
        if parts.size:
            assert parts.sum() == total and np.ptp(parts) <= 1
            assert np.all(np.diff(parts) <= 0), "clients of lower number have the larger parts"
    if mode != "random":
        assert np.all(counts[np.arange(clients), np.arange(clients) % 5] > 0)
    if mode == "deterministic":
        for client, row in enumerate(counts):
            assert set(np.flatnonzero(row)) == {(client + step) % 5 for step in range(wanted)}


def test_pathological_draws_every_set_of_categories_equally_often() -> None:
    table = make_table(20_000, FIVE)
    counts = count_labels(draw("pathological", table, 1500, categories_per_client=2), table.codes, 5)
    seen = Counter(tuple(np.flatnonzero(row).tolist()) for row in counts)
    assert len(seen) == 10
    assert all(abs(times - 150) < 4.5 * np.sqrt(1500 * 0.1 * 0.9) for times in seen.values())


def test_pathological_says_what_does_not_fit() -> None:
    table = make_table(60, FIVE)
    with pytest.raises(OptionError, match="6 categories per client are asked for, the pool has 5"):
        draw("pathological", table, 3, categories_per_client=6)
    with pytest.raises(OptionError, match="40 clients would share the"):
        draw("pathological", table, 40, categories_per_client=5)
    with pytest.raises(OptionError, match="needs categories_per_client"):
        draw("pathological", table, 3)


# ---- shards -----------------------------------------------------------------------------------------------------


@given(
    items=st.integers(20, 200),
    clients=st.integers(1, 12),
    each=st.none() | st.integers(1, 4),
    size=st.none() | st.integers(1, 12),
    keep=st.booleans(),
    seed=st.integers(0, 9),
)
def test_shards_are_blocks_of_the_sorted_tasks(
    items: int, clients: int, each: int | None, size: int | None, keep: bool, seed: int
) -> None:
    table = make_table(items, FIVE)
    try:
        drawn = draw("shards", table, clients, seed, shards_per_client=each, shard_size=size, keep_incomplete=keep)
    except OptionError as error:
        assert "lower" in str(error) or "needs shards_per_client" in str(error)
        return
    used = size or items // (clients * (each or 1))
    assert drawn.count_copies(items).max() == 1 and drawn.sizes.min() >= 1
    blocks = -(-drawn.sizes // used)
    if each is not None:
        assert set(blocks.tolist()) == {each}
        assert (drawn.sizes < each * used).sum() <= (1 if keep and size is None else 0)
    else:
        assert np.ptp(blocks) <= 1 and np.all(np.diff(blocks) <= 0)
        assert drawn.sizes.sum() == (items if keep else items - items % used)


def test_a_shard_each_shows_the_order_of_the_categories() -> None:
    """With one shard a client, the clients' categories are those of consecutive blocks of the sorted tasks."""
    table = make_table(100, FIVE)
    counts = count_labels(draw("shards", table, 20, shard_size=5), table.codes, 5)
    blocks = np.sort(table.codes).reshape(20, 5)
    expected = [tuple(np.bincount(block, minlength=5)) for block in blocks]
    assert sorted(map(tuple, counts)) == sorted(expected)


def test_shards_say_what_does_not_fit() -> None:
    table = make_table(100)
    with pytest.raises(OptionError, match="20 clients x 3 shards of 2 need 120 tasks, the pool has 100"):
        draw("shards", table, 20, shards_per_client=3, shard_size=2)
    with pytest.raises(OptionError, match="200 clients x 1 shards of 1 need 200 tasks"):
        draw("shards", table, 200, shards_per_client=1)
    with pytest.raises(OptionError, match="100 tasks make 10 shards of 10, and 11 clients need one each"):
        draw("shards", table, 11, shard_size=10)
    with pytest.raises(OptionError, match="shards_per_client, shard_size, or both"):
        draw("shards", table, 2)


# ---- natural ----------------------------------------------------------------------------------------------------


@given(
    users=st.lists(st.integers(-3, 12), min_size=1, max_size=60)
    | st.lists(st.text(max_size=3), min_size=1, max_size=40),
    size=st.integers(1, 4),
    remainder=st.sampled_from(["smaller", "bigger", "drop", "refuse"]),
    shuffle=st.booleans(),
    fewest=st.integers(1, 3),
)
def test_clients_are_the_values_of_a_field(
    users: list[Any], size: int, remainder: str, shuffle: bool, fewest: int
) -> None:
    pool = make_user_pool(users)
    values = sorted(value for value, count in Counter(users).items() if count >= fewest)
    rest = len(values) % size
    parameters = {"group_size": size, "remainder": remainder, "shuffle": shuffle, "min_tasks": fewest}
    try:
        made = federate(GUESS, partition="natural", by="user", pool=pool, **parameters)
    except OptionError as error:
        too_few = not values or (len(values) < size and remainder != "smaller")
        assert too_few or (rest and remainder == "refuse"), error
        return
    groups = [sorted(set(client.pool.get_field("user"))) for client in made]
    count = len(values) // size + (remainder == "smaller" and rest > 0)
    assert len(groups) == count
    assert sum(map(len, groups)) == len(values) - (rest if remainder == "drop" else 0)
    for client, group in zip(made, groups, strict=True):
        held = sorted(name for name, user in zip(pool.ids, users, strict=True) if user in group)
        assert sorted(client.tasks) == held, "a user's tasks are on one client, all of them"
    if not shuffle and remainder != "bigger":
        assert [value for group in groups for value in group] == values[: count * size]
    if remainder == "bigger":
        assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize(
    ("values", "remainder", "sizes"),
    [
        (7, "smaller", [3, 3, 1]),
        (7, "bigger", [4, 3]),
        (8, "bigger", [4, 4]),
        (7, "drop", [3, 3]),
        (6, "smaller", [3, 3]),
        (6, "bigger", [3, 3]),
        (6, "refuse", [3, 3]),
        (2, "smaller", [2]),
    ],
)
def test_values_that_fill_no_group(values: int, remainder: str, sizes: list[int]) -> None:
    pool = make_user_pool(list(range(values)))
    made = federate(GUESS, partition="natural", by="user", pool=pool, group_size=3, remainder=remainder)
    assert [len(client.tasks) for client in made] == sizes


@pytest.mark.parametrize(
    ("values", "remainder", "told"),
    [(2, "bigger", "no group of 3"), (2, "drop", "no group of 3"), (7, "refuse", "leave 1 beside groups of 3")],
)
def test_values_that_fill_no_group_may_be_an_error(values: int, remainder: str, told: str) -> None:
    pool = make_user_pool(list(range(values)))
    with pytest.raises(OptionError, match=told):
        federate(GUESS, partition="natural", by="user", pool=pool, group_size=3, remainder=remainder)


def test_fewer_clients_than_users_are_drawn() -> None:
    table = make_table(400)
    few = draw("natural", table, 10, by="user")
    assert set(few.sizes.tolist()) == {8}
    assert not few.same_as(draw("natural", table, 10, by="user", seed=1))
    with pytest.raises(OptionError, match="51 clients are asked for, and the 50 values of 'user' make 50"):
        draw("natural", table, 51, by="user")


def test_a_field_may_be_a_category_a_column_or_what_the_payload_names() -> None:
    by_category = federate(GUESS, partition="natural", by="category")
    assert [set(client.pool.get_field("category")) for client in by_category] == [
        {name} for name in sorted(by_category.pool.categories)
    ]
    by_payload = federate(GUESS, partition="natural", by="high")
    assert [set(client.pool.get_field("high")) for client in by_payload] == [{10}, {30}, {100}]
    with pytest.raises(UnknownNameError, match=r"'hihg'.*did you mean 'high'"):
        federate(GUESS, partition="natural", by="hihg")
    assert len(federate(GUESS, tasks_per_client=3)) == 10


@pytest.mark.parametrize("place", [0, 1])
def test_a_task_without_a_user_is_named(place: int) -> None:
    users: list[str | None] = ["a", "b", "c"]
    users[place] = None
    with pytest.raises(DataError, match=f"'guess/train/0000{place}' has nothing in the field 'user'"):
        federate(GUESS, partition="natural", by="user", pool=make_user_pool(users))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [1.5, np.float64(2.5), True, ["b"]])
def test_a_task_whose_user_is_no_text_is_named(wrong: Any) -> None:
    pool = make_user_pool(["a", "b", wrong])
    assert "user" not in pool.columns, "the digest is that of the other fields"
    for one in (pool, pickle.loads(pickle.dumps(pool)), pool.subset(pool.ids[1:])):
        with pytest.raises(
            DataError, match=r"'guess/train/00002' has .* in the field 'user': clients are formed by texts"
        ):
            one.get_field("user")
    with pytest.raises(UnknownNameError, match="unknown field of the tasks"):
        pool.get_field("usr")


def test_other_samplers_take_any_field_for_a_label() -> None:
    pool = make_user_pool([f"u{number % 6}" for number in range(60)])
    for name, parameters in (
        ("dirichlet", {"beta": 0.2}),
        ("pathological", {"categories_per_client": 1, "assignment": "deterministic"}),
        ("shards", {"shards_per_client": 1}),
    ):
        made = federate(GUESS, partition=name, clients=6, label="user", pool=pool, **parameters)
        users = [len(set(client.pool.get_field("user"))) for client in made]
        assert min(users) == 1 if name == "dirichlet" else set(users) == {1}


# ---- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("natural", {"by": "user", "group_size": 2, "shuffle": True}),
        ("shards", {"shards_per_client": 2, "clients": 4, "label": "user"}),
        ("pathological", {"categories_per_client": 1, "clients": 5}),
        ("dirichlet", {"beta": 0.1, "label": "user", "clients": 4}),
        ("dirichlet", {"beta": 0.1, "label": "hardness", "clients": 4, "labels": "pool"}),
    ],
)
def test_a_stored_split_is_verified(name: str, parameters: dict[str, Any], tmp_path: Path) -> None:
    rows = [
        {"category": "abc"[number % 3], "payload": (8, 3), "user": number % 7, "hardness": float(number % 5)}
        for number in range(140)
    ]
    pool = TaskPool.from_records(rows, env=GUESS)
    made = federate(GUESS, partition=name, pool=pool, roles={"public": 12}, **parameters)
    again = load_client_split(made.save(tmp_path / "split.json"), pool=pool)
    assert again.digest == made.digest
    sampling = {check.name: check for check in again.verify() if check.name not in ("pool", "evaluation")}
    assert all(check.ok for check in sampling.values()), [check for check in sampling.values() if not check.ok]


def test_users_are_part_of_the_pool() -> None:
    first, second = make_user_pool(["a", "a", "b"]), make_user_pool(["a", "b", "b"])
    assert first.digest != second.digest
    copy = pickle.loads(pickle.dumps(first.subset(first.ids[1:])))
    assert copy.get_field("user") == ["a", "b"]
