"""The requirements of a sampler of client splits, checked on a synthetic pool."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedagentgym.base.streams import stream
from fedagentgym.partitions.samplers.sampler import dump_parameters, make_sampler, sample_clients
from fedagentgym.partitions.table import TaskTable, encode_values
from fedagentgym.testing.conditions import global_generators_untouched


def check_sampler(name: str, *, clients: int = 10, tasks: int = 600, categories: int = 5, **parameters: Any) -> None:
    """Check a registered sampler with the given parameters on a pool of `tasks` tasks.

    It must give every client different tasks of the pool, repeat itself for a seed, differ for another, leave the global
    generators alone, and have parameters that survive a split file. The tasks have a field `user` with about 15 tasks each.
    """
    table = _make_table(tasks, categories)
    sampler = make_sampler(name, parameters)
    with global_generators_untouched(name):
        first = sample_clients(sampler, table, clients, 0)
    assert first.items.size, f"{name} gives out no task at all"
    assert first.same_as(sample_clients(sampler, table, clients, 0)), f"{name} gives another split for the same seed"
    others = [sample_clients(sampler, table, clients, seed) for seed in (1, 2, 3)]
    assert any(not first.same_as(other) for other in others), f"{name} does not depend on the seed"
    stored = json.loads(json.dumps(dump_parameters(sampler)))
    again = sample_clients(make_sampler(name, stored), table, clients, 0)
    assert first.same_as(again), f"{name} gives another split for the parameters that a split file would hold"


def _make_table(tasks: int, categories: int) -> TaskTable:
    draws = stream(0, "check sampler")
    weights = [1.0 / (1 + code) for code in range(categories)]
    codes = np.concatenate([np.arange(categories), draws.weighted(weights, size=tasks - categories)])
    names = tuple(f"category {code:02d}" for code in range(categories))
    ids = [f"check/train/{number:05d}" for number in range(tasks)]
    solved = draws.uniform(tasks) < 0.5
    users = draws.permutation(tasks) % max(tasks // 15, 1)
    fields = {"user": encode_values(users.tolist())}
    return TaskTable(ids, names, codes, np.arange(tasks), solved, fields.__getitem__)
