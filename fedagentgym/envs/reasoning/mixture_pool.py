"""The pool of a mixture: its members' tasks one after the other, under ids and categories that name the member."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.reasoning.pools import Strip
from fedagentgym.envs.task import Value, make_task_id

MEMBERS, OWN = "members", "own"
CATEGORIES = (MEMBERS, OWN)


class Part(NamedTuple):
    """A member's part: its name, its tasks, and how a payload of them is shown without gold."""

    name: str
    pool: TaskPool
    strip: Strip


@lru_cache(maxsize=8)
def join_pools(env_id: str, split: str, parts: tuple[Part, ...], categories: str) -> TaskPool:
    """One pool of all parts; the same pools give the same one. The category is the member's name, or `name/category`."""
    ends = np.cumsum([len(part.pool) for part in parts])

    def locate(index: int) -> tuple[Part, int]:
        """The part of a task, and the task's place there."""
        which = int(np.searchsorted(ends, index, side="right"))
        return parts[which], index - (int(ends[which - 1]) if which else 0)

    def load_payload(index: int) -> tuple[str, Any]:
        part, place = locate(index)
        return part.name, part.pool[place].payload

    def find_hardness(index: int) -> float | None:
        part, place = locate(index)
        return part.pool.find_hardness(place)

    return TaskPool(
        env=env_id,
        split=split,
        ids=list(chain.from_iterable(map(_rename_ids, parts))),
        categories=_name_categories(parts) if categories == OWN else _name_members(parts),
        payload=load_payload,
        source={"mixture": {part.name: part.pool.source for part in parts}},
        hardness=find_hardness,
        strip=partial(_strip, {part.name: part.strip for part in parts}),
        columns=_join_columns(parts),
    )


def _join_columns(parts: Sequence[Part]) -> dict[str, list[Value | None]]:
    """Further fields of the tasks of any part; tasks of the others have no value."""
    names = sorted({name for part in parts for name in part.pool.columns})
    return {
        name: [value for part in parts for value in part.pool.columns.get(name) or [None] * len(part.pool)]
        for name in names
    }


def _rename_ids(part: Part) -> list[str]:
    """The ids of a member's tasks in the mixture: `mixture/gsm8k/train/00042`."""
    own = make_task_id(part.pool.env, "", 0).partition("/")[0]
    return [f"mixture/{part.name}{identifier.removeprefix(own)}" for identifier in part.pool.ids]


def _name_members(parts: Sequence[Part]) -> tuple[Sequence[str], NDArray[np.int32]]:
    sizes = [len(part.pool) for part in parts]
    return [part.name for part in parts], np.repeat(np.arange(len(parts), dtype=np.int32), sizes)


def _name_categories(parts: Sequence[Part]) -> tuple[Sequence[str], NDArray[np.int32]]:
    names = [f"{part.name}/{category}" for part in parts for category in part.pool.category_names]
    before = np.cumsum([0, *(len(part.pool.category_names) for part in parts)])
    codes = [part.pool.category_codes + start for part, start in zip(parts, before, strict=False)]
    return names, np.concatenate(codes).astype(np.int32)


def _strip(strips: dict[str, Strip], payload: tuple[str, Any]) -> tuple[str, Any]:
    name, inner = payload
    if name not in strips:
        raise DataError(f"a task of the member {str(name)[:80]!r}, which this mixture does not have")
    return name, strips[name](inner)
