"""Indices of the tasks of a generated pool: in one split, or in all of them one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedagentgym.envs.task import TaskIds, make_task_id


class Place(NamedTuple):
    """A task is the n-th of its split, also in a pool of all splits."""

    split: str
    number: int


def lay_out_tasks(env_id: str, split: str, sizes: Mapping[str, int]) -> tuple[Sequence[str], list[Place]]:
    """The ids of a split, or of `all`, and the place of each."""
    parts = list(sizes) if split == "all" else [split]
    places = [Place(part, number) for part in parts for number in range(sizes[part])]
    if split != "all":
        return TaskIds(env_id, split, sizes[split]), places
    return [make_task_id(env_id, *place) for place in places], places
