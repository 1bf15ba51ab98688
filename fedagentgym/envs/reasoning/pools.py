"""Pools of generated tasks, and the record of a loaded task.

A cell is one category at one level. Generated tasks take turns through all cells and are numbered in this order. The splits
are ranges of these numbers: val, test, warmup, then train, so that more training tasks never move the other splits. The split
`unseen` has cells of its own, with templates that no other split has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedagentgym.base.errors import OptionError
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.reasoning.generators.problems import Form, ProblemSequence
from fedagentgym.envs.tasks import TaskIds, Value

ORDER = ("val", "test", "warmup", "train")
LEVELS = 5
Strip = Callable[[Any], Any]


class Cell(NamedTuple):
    """One category at one level, with all its problems."""

    category: str
    level: int
    deck: ProblemSequence[Any]


def make_tiny_cells(by_category: Mapping[str, Sequence[Form[Any]]], seed: int, *path: str) -> list[Cell]:
    """A cell for each category of a generator for very small models, which has one level."""
    return [
        Cell(category, 1, ProblemSequence(forms, seed, "tiny", category, *path))
        for category, forms in by_category.items()
    ]


def make_level_cells(by_category: Mapping[str, Sequence[Sequence[Form[Any]]]], seed: int, *path: str) -> list[Cell]:
    """A cell for each category at each of the five levels at which the category has problems."""
    return [
        Cell(category, level, ProblemSequence(levels[level - 1], seed, category, level, *path))
        for level in range(1, LEVELS + 1)
        for category, levels in by_category.items()
        if levels[level - 1]
    ]


class PoolGenerator:
    """Makes the pool of any split from a generator's cells and the sizes of its splits."""

    def __init__(
        self,
        env: str,
        cells: Sequence[Cell],
        sizes: Mapping[str, int],
        source: Mapping[str, Any],
        strip: Strip,
        rate: Callable[[Any], float] | None = None,
        order: Sequence[str] = ORDER,
    ):
        """`rate` gives the hardness of a problem, by default its level divided by the highest. `order` lists the splits."""
        self._env, self._cells, self._source, self._strip, self._rate = env, cells, source, strip, rate
        self._starts, self._sizes, start = {}, {split: sizes[split] for split in order}, 0
        for split in order:
            self._starts[split] = start
            start += sizes[split]
        capacity = min(len(cell.deck) for cell in cells) * len(cells)
        if start > capacity:
            room = capacity - start + sizes[order[-1]]
            raise OptionError(
                f"train_tasks: this generator has {room} different training tasks, {sizes[order[-1]]} were asked for"
            )

    def make_pool(self, split: str) -> TaskPool:
        """The pool of a split; `all` has the tasks of every split, in the order of their numbers."""
        names = sorted({cell.category for cell in self._cells})
        codes = np.array([names.index(cell.category) for cell in self._cells], dtype=np.int32)
        first = self._starts.get(split, 0)
        count = sum(self._sizes.values()) if split == "all" else self._sizes[split]
        ids: Sequence[str] = TaskIds(self._env, split, count)
        splits: list[str] | None = None
        if split == "all":
            ids = [identifier for part in self._sizes for identifier in TaskIds(self._env, part, self._sizes[part])]
            splits = [part for part in self._sizes for _ in range(self._sizes[part])]
        most = LEVELS if any(cell.level > 1 for cell in self._cells) else 1

        def rate(index: int) -> float:
            if self._rate is not None:
                return self._rate(self._make_problem(first + index))
            return self._cells[(first + index) % len(self._cells)].level / most

        return TaskPool(
            env=self._env,
            split=split,
            ids=ids,
            categories=(names, codes[np.arange(first, first + count) % len(self._cells)]),
            payload=lambda index: self._make_problem(first + index),
            source={**self._source, "sizes": self._sizes},
            hardness=rate,
            split_of=None if splits is None else splits.__getitem__,
            strip=self._strip,
        )

    def _make_problem(self, number: int) -> Any:
        cell = self._cells[number % len(self._cells)]
        return cell.deck[number // len(self._cells)]


class LoadedTask(NamedTuple):
    """One task made from a row of data."""

    split: str
    category: str
    payload: Any
    hardness: float | None = None
    fields: Mapping[str, Value] = MappingProxyType({})
    """Further fields, such as the user to whom the task belongs."""

    @property
    def question(self) -> tuple[Any, ...]:
        """The question and its facts, by which repeated tasks are found."""
        return self.payload[0], getattr(self.payload, "facts", ())
