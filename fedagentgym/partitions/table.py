"""The table of a pool that samplers divide: numbered tasks with their categories and, if known, whether they count as solved.

Tasks are numbered in the order of their ids and categories in the order of their names, so the order in the pool has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.errors import DataError, OptionError, join_names
from fedagentgym.base.shorten import show_fields
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.make import check_pool, env_class, open_env
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.tasks import UNSEEN


def refuse_evaluation(cls: type[TextEnv], split: str) -> None:
    """Raise for evaluation splits, which are never divided among clients."""
    if split in cls.evaluation_splits or split == "all":
        raise OptionError(
            f"the split {split!r} holds evaluation tasks, which are never divided among clients: use 'train'"
        )


def list_evaluation(cls: type[TextEnv]) -> tuple[str, ...]:
    """The evaluation splits that a client split's record names: all except `unseen`, whose templates no other split has."""
    return tuple(split for split in cls.evaluation_splits if split != UNSEEN)


def open_pool(env_id: str, split: str, options: Mapping[str, Any], given: TaskPool | None = None) -> TaskPool:
    """The given pool, or the pool that the environment loads with these options."""
    if given is not None:
        return check_pool(env_class(env_id), split, given)
    env = open_env(env_id, **{**options, "split": split})
    pool = env.pool
    env.close()
    return pool


Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Labels = tuple[Ints, tuple[str, ...]]
FieldReader = Callable[[str], Labels]
"""A function from the name of a field to the code of every task of the whole pool's table, and the names of the codes."""


@dataclass(frozen=True, eq=False)
class PoolFields:
    """A `FieldReader` of a pool, whose codes are in the order of the table's tasks. Each field is encoded once."""

    pool: TaskPool
    order: Ints
    _encoded: dict[str, Labels] = field(default_factory=dict)

    def __call__(self, name: str) -> Labels:
        if name not in self._encoded:
            values = self.pool.get_field(name)
            self._encoded[name] = encode_values([values[row] for row in self.order.tolist()])
        return self._encoded[name]


@dataclass(frozen=True, eq=False)
class TaskTable:
    """The tasks of a pool as samplers see them: numbered by their sorted ids.

    Attributes:
        ids: Id of each task, sorted.
        names: Names of the categories, sorted.
        codes: Category of each task, as an index of `names`.
        rows: Number of each task in the table of the whole pool.
        solved: Whether each task counts as solved; None if unknown.
        read_field: Reads another field of the tasks; use `find_labels`.
    """

    ids: Sequence[str]
    names: tuple[str, ...]
    codes: Ints
    rows: Ints
    solved: Flags | None = None
    read_field: FieldReader | None = None

    def __repr__(self) -> str:
        return show_fields(self)

    @classmethod
    def from_pool(cls, pool: TaskPool) -> TaskTable:
        """Make the table of a pool.

        Args:
            pool: The pool.

        Returns:
            The table, without labels of which tasks are solved.
        """
        ids = list(pool.ids)
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
        held = np.flatnonzero(np.bincount(pool.category_codes, minlength=len(pool.category_names)))
        used = sorted((pool.category_names[code], int(code)) for code in held)
        translate = np.zeros(max(len(pool.category_names), 1), dtype=np.int64)
        translate[[code for _, code in used]] = np.arange(len(used))
        codes = translate[pool.category_codes[order]]
        numbers = np.arange(len(ids))
        names = tuple(name for name, _ in used)
        return cls([ids[row] for row in order], names, codes, numbers, read_field=PoolFields(pool, order))

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def counts(self) -> Ints:
        """Number of tasks of each category."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)

    @cached_property
    def by_category(self) -> tuple[Ints, Ints]:
        """The numbers of the tasks, sorted by category and then ascending, and the position at which each category starts."""
        return np.argsort(self.codes, kind="stable"), np.concatenate([[0], np.cumsum(self.counts)])

    def select(self, keep: Flags) -> TaskTable:
        """Return the table of some tasks; categories that lose all their tasks disappear.

        Args:
            keep: For each task, whether it is kept.

        Returns:
            The smaller table; its tasks are numbered anew.
        """
        kept = np.flatnonzero(keep)
        names, codes = np.unique(self.codes[kept], return_inverse=True)
        solved = None if self.solved is None else self.solved[kept]
        ids = [self.ids[item] for item in kept.tolist()]
        kept_names = tuple(self.names[code] for code in names)
        return TaskTable(ids, kept_names, codes.astype(np.int64), self.rows[kept], solved, self.read_field)

    def find_labels(self, field: str) -> Labels:
        """Return the tasks' values of a field, by which a sampler can group them.

        Args:
            field: `category`, `hardness`, or another field of the tasks.

        Returns:
            The code of each task, and the names of the codes.

        Raises:
            DataError: If the field is `hardness` and it is unknown which tasks are solved.
            OptionError: If the tasks have no such field.
        """
        if field == "category":
            return self.codes, self.names
        if field == "hardness":
            if self.solved is None:
                raise DataError(
                    "label='hardness' needs labels of which tasks are solved: make them with `fedagentgym label`"
                )
            return self.solved.astype(np.int64), ("unsolved", "solved")
        if self.read_field is None:
            raise OptionError(f"these tasks have no field {field!r}, only their category")
        codes, names = self.read_field(field)
        held, codes = np.unique(codes[self.rows], return_inverse=True)
        return codes.astype(np.int64), tuple(names[code] for code in held.tolist())

    def with_solved(self, solved: Flags | None) -> TaskTable:
        """Return the same table with labels of which tasks are solved.

        Args:
            solved: For each task, whether it counts as solved.

        Returns:
            The table with these labels.
        """
        return replace(self, solved=solved)

    def find_numbers(self, ids: Iterable[str], what: str) -> Ints:
        """Return the numbers of tasks by their ids.

        Args:
            ids: The ids, in any order.
            what: Name of the source of the ids, for the error message.

        Returns:
            The numbers, ascending.

        Raises:
            DataError: If the table lacks a task.
        """
        wanted = np.array(sorted(ids), dtype=object)
        position = np.searchsorted(np.asarray(self.ids, dtype=object), wanted)
        clipped = np.minimum(position, max(len(self.ids) - 1, 0))
        missing = [name for name, at in zip(wanted, clipped, strict=True) if not len(self) or self.ids[at] != name]
        if missing:
            raise DataError(f"{what} names {len(missing)} tasks that the pool does not hold: {join_names(missing, 3)}")
        return position.astype(np.int64)


def encode_values(values: Sequence[str | int]) -> Labels:
    """Codes and names of the values of a field. Numbers are in the order of their size, other values in alphabetical order."""
    shown = values if all(isinstance(value, int) for value in values) else [str(value) for value in values]
    order = sorted(set(shown))
    code = {value: number for number, value in enumerate(order)}
    return np.fromiter((code[value] for value in shown), dtype=np.int64, count=len(shown)), tuple(map(str, order))
