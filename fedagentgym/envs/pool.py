"""An ordered pool of tasks: ids, categories, a digest that identifies the data, and payloads that are made on demand.

In one process, environments of a class with `shares_pools` share the pool if their options are the same and name no local
data. A pool that an environment loaded is pickled as the options that it was loaded with, not as its tasks, and it is loaded
again (or found in memory) when it is unpickled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property
from numbers import Real
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError, OptionError, holds_halves, require_type, show_value, unknown_name_error
from fedagentgym.base.imports import require
from fedagentgym.base.rounding import count_things
from fedagentgym.envs.registry import format_env_words
from fedagentgym.envs.tasks import (
    Task,
    TaskIds,
    Value,
    collect_columns,
    find_unfit_values,
    get_payload_field,
    is_value,
    list_payload_fields,
    make_task_id,
)
from fedagentgym.envs.view import View

if TYPE_CHECKING:
    from datasets import Dataset


class EpisodeStarter(Protocol):
    """The part of an environment that starts episodes."""

    def reset_many(self, tasks: Sequence[str | Task], seeds: Sequence[int]) -> Sequence[Any]: ...


class PoolOrigin(Protocol):
    """A reference to the data of a pool. The pool is pickled as this reference, and unpickling loads the data again."""

    @property
    def options(self) -> Mapping[str, Any]: ...

    def load(self) -> TaskPool: ...

    def open_env(self, pool: TaskPool) -> EpisodeStarter: ...


class PromptTemplate(Protocol):
    """A renderer of the first prompt of an episode; `fedagentgym.agents.text.prompts.Template` is one."""

    def render_first(self, env: Any, view: View) -> str: ...


Labels = Sequence[str] | tuple[Sequence[str], NDArray[np.int32]]


class TaskPool:
    """Tasks in a fixed order; immutable. `TextEnv.load_pool` returns one; `env.pool` and `client.pool` are pools too.

    `pool["guess/train/00042"]` and `pool[42]` are tasks, made on demand; `len`, `in` and loops work as for a sequence.

    Args:
        env: Id of the environment.
        split: Name of the split.
        ids: Id of each task.
        categories: Category of each task; or the names of all categories, and an array with the index of each task's category.
        payload: Returns the payload of the task at an index.
        source: What the tasks were made from: generator, version and options, or digests of data files. It is a part of the
            pool's digest, so that a split made for other data is refused.
        hardness: Returns the hardness of the task at an index.
        strip: Returns a payload without its answer.
        columns: Further fields of the tasks, such as the user of each; a part of the digest.
        split_of: Returns the split of the task at an index, in a pool of all splits.

    Raises:
        DataError: If there are not as many categories or values of a column as ids.
    """

    def __init__(
        self,
        *,
        env: str,
        split: str,
        ids: Sequence[str],
        categories: Labels,
        payload: Callable[[int], Any],
        source: Mapping[str, Any],
        hardness: Callable[[int], float | None] | None = None,
        strip: Callable[[Any], Any] | None = None,
        columns: Mapping[str, Sequence[Value | None]] | None = None,
        split_of: Callable[[int], str] | None = None,
    ) -> None:
        self.env, self.split, self.ids, self.source = env, split, ids, dict(source)
        self._split_of = split_of
        self.category_names: tuple[str, ...]
        self.category_codes: NDArray[np.int32]
        if isinstance(categories, tuple) and len(categories) == 2 and isinstance(categories[1], np.ndarray):
            self.category_names, self.category_codes = tuple(categories[0]), categories[1]
        else:
            labels = [str(label) for label in categories]
            self.category_names = tuple(sorted(set(labels)))
            code = {name: number for number, name in enumerate(self.category_names)}
            self.category_codes = np.fromiter((code[label] for label in labels), dtype=np.int32, count=len(labels))
        self._payload, self._hardness, self._strip = payload, hardness, strip
        self.columns = {name: tuple(values) for name, values in sorted((columns or {}).items())}
        """Further fields of the tasks, such as the user of each, one value a task; part of the digest."""
        self._unfit: Mapping[str, tuple[str, str]] = {}
        """Fields of the records that are no columns, each with a task whose value is unfit, and this value."""
        self._hidden: frozenset[str] = frozenset()
        self.origin: PoolOrigin | None = None
        """If set, the pool is pickled as a reference to its data; otherwise as its tasks."""
        self._whole = True
        if len(self.category_codes) != len(ids):
            raise DataError(f"a pool of {len(ids)} tasks was given {len(self.category_codes)} categories")
        if wrong := [name for name, values in self.columns.items() if len(values) != len(ids)]:
            raise DataError(
                f"a pool of {len(ids)} tasks was given {len(self.columns[wrong[0]])} values of {wrong[0]!r}"
            )

    @classmethod
    def from_records(
        cls,
        records: Iterable[Mapping[str, Any]],
        *,
        env: str,
        split: str = "train",
        strip: Callable[[Any], Any] | None = None,
        payload_key: Callable[[Any], Any] | None = None,
    ) -> TaskPool:
        """Make a pool of given tasks.

        Args:
            records: Mappings with `category` and `payload`, optionally `id` and `hardness`. Other keys with texts or whole
                numbers, for example `user`, are fields by which clients can be formed.
            env: Id of the environment.
            split: Name of the split.
            strip: Returns a payload without its answer.
            payload_key: Returns a plain value that identifies a payload. Payloads that are JSON values, tuples or dataclasses
                need none.

        Returns:
            The pool, in the order of the records.

        Raises:
            DataError: If a record lacks a field, an id occurs twice, or a payload needs a `payload_key`.

        Examples:
            >>> rows = [{"category": "sum", "payload": [1, 2]}, {"category": "sum", "payload": [3, 4]}]
            >>> TaskPool.from_records(rows, env="me/Sums-v0").ids
            ['sums/train/00000', 'sums/train/00001']
        """
        if not isinstance(records, Iterable):
            raise DataError(f"task records must be a list of mappings, got {show_value(records)}")
        rows = list(records)
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise DataError(f"task record {number} is no mapping but {show_value(row)}")
            if missing := {"category", "payload"} - set(row):
                raise DataError(f"task record {number} lacks the field {min(missing)!r}")
            if holds_halves({name: value for name, value in row.items() if name != "payload"}):
                raise DataError(f"task record {number} holds half of a character (a lone surrogate) in a name or field")
            hardness = row.get("hardness")
            if hardness is not None and not (isinstance(hardness, Real) and math.isfinite(hardness)):
                raise DataError(f"task record {number}: hardness must be a finite number, got {show_value(hardness)}")
        given = [row.get("id") for row in rows]
        ids = [make_task_id(env, split, number) if one is None else str(one) for number, one in enumerate(given)]
        if len(set(ids)) != len(ids):
            raise DataError("task records hold one id twice")
        identify = payload_key or (lambda payload: payload)
        content = hashlib.sha256(
            represent([(row["category"], identify(row["payload"])) for row in rows]).encode("utf-8", "surrogatepass")
        )
        own = ("id", "category", "payload", "hardness")
        pool = cls(
            env=env,
            split=split,
            ids=ids,
            categories=[str(row["category"]) for row in rows],
            payload=lambda index: rows[index]["payload"],
            source={"records": content.hexdigest()},
            hardness=lambda index: rows[index].get("hardness"),
            strip=strip,
            columns=collect_columns(rows, own),
        )
        pool._unfit = find_unfit_values(rows, own, ids)
        return pool

    def __repr__(self) -> str:
        names = list(self.categories)
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"TaskPool({count_things(len(self.ids), 'task')} of {self.env}, {self.split}: {shown})"

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Task]:
        return (self._make_task(index) for index in range(len(self.ids)))

    def __contains__(self, identifier: object) -> bool:
        return isinstance(identifier, str) and self._find(identifier) is not None

    def __getitem__(self, key: str | int) -> Task:
        if isinstance(key, str):
            return self._make_task(self.find_position(key))
        if not isinstance(key, int | np.integer) or not -len(self.ids) <= key < len(self.ids):
            require_type("a task of a pool is named by its id or its index", key, int, np.integer)
            raise DataError(f"the pool {self.env} {self.split} has {len(self.ids)} tasks, index {key} is out of range")
        return self._make_task(key % len(self.ids))

    def find_position(self, identifier: str) -> int:
        """Return the index of a task.

        Args:
            identifier: Its id.

        Returns:
            The index.

        Raises:
            UnknownNameError: If the pool has no such task.
        """
        found = self._find(identifier) if isinstance(identifier, str) else None
        if found is None:
            require_type("a task is named by its id", identifier, str)
            examples = self.ids[:1000] if len(self.ids) > 1000 else self.ids
            raise unknown_name_error(f"task of {self.env} ({self.split}, {len(self.ids)} tasks)", identifier, examples)
        return found

    @property
    def categories(self) -> dict[str, int]:
        """The number of tasks of each category."""
        counts = np.bincount(self.category_codes, minlength=len(self.category_names))
        return {name: int(count) for name, count in zip(self.category_names, counts, strict=True) if count}

    def find_hardness(self, index: int) -> float | None:
        """Return the hardness of a task.

        Args:
            index: Its index.

        Returns:
            The hardness; None if the data has none.
        """
        require_type("a task's hardness is found by its index", index, int, np.integer)
        return None if self._hardness is None else self._hardness(index)

    def get_category(self, identifier: str) -> str:
        """Return the category of a task.

        Args:
            identifier: Its id.

        Returns:
            The category.

        Raises:
            UnknownNameError: If the pool has no such task.
        """
        return self.category_names[int(self.category_codes[self.find_position(identifier)])]

    def get_field(self, name: str) -> list[Value]:
        """Return the value of a field for every task.

        Args:
            name: `category`, a column of the pool, or a field of the payloads.

        Returns:
            The values, in the order of the tasks.

        Raises:
            UnknownNameError: If no task has such a field.
            DataError: If a task lacks the field, or its value is neither a text nor a whole number.
        """
        require_type("a field is a name", name, str)
        if name in self.columns:
            found: Sequence[Any] = self.columns[name]
        elif name == "category":
            found = [self.category_names[code] for code in self.category_codes.tolist()]
        else:
            found = [get_payload_field(task.payload, name) for task in self]
        if all(value is None for value in found):
            if name in self._unfit:
                raise _refuse_value(*self._unfit[name], name)
            known = sorted({"category", *self.columns, *(list_payload_fields(self[0].payload) if len(self) else ())})
            raise unknown_name_error(f"field of the tasks of {self.env}", name, known)
        unfit = next((place for place, value in enumerate(found) if not is_value(value)), None)
        if unfit is not None:
            shown = "nothing" if found[unfit] is None else show_value(found[unfit])
            raise _refuse_value(self.ids[unfit], shown, name)
        return list(found)

    @cached_property
    def digest(self) -> str:
        """sha256 over the environment's id, the source, the ordered ids with their categories, and the columns."""
        hasher = hashlib.sha256(canonical_json(["pool", self.env, self.source]).encode("ascii"))
        names = self.category_names
        for start in range(0, len(self.ids), 65536):
            codes = self.category_codes[start : start + 65536].tolist()
            rows = zip(self.ids[start : start + 65536], codes, strict=True)
            hasher.update("".join(f"\n{identifier}\t{names[code]}" for identifier, code in rows).encode("utf-8"))
        if self.columns:
            hasher.update(canonical_json(["columns", self.columns]).encode("ascii"))
        return "sha256:" + hasher.hexdigest()

    def subset(self, ids: Iterable[str]) -> TaskPool:
        """Return the pool of some tasks, which shares their payloads.

        Args:
            ids: Ids of the tasks.

        Returns:
            The pool, in the order of the ids.

        Raises:
            UnknownNameError: If the pool has no such task.
            OptionError: If the ids are a set, whose order differs from process to process.
            DataError: If an id occurs twice.
        """
        require_type("tasks are a list of ids", ids, Iterable)
        if isinstance(ids, Set) and not isinstance(ids, KeysView):
            raise OptionError("tasks must be in an order, such as a list of ids, got a set: sort it")
        chosen = list(ids)
        positions = np.fromiter(
            (self.find_position(identifier) for identifier in chosen), dtype=np.int64, count=len(chosen)
        )
        if len(set(chosen)) != len(chosen):
            raise DataError("the list of ids names a task twice")
        where, hardness, split_of = positions.tolist(), self._hardness, self._split_of
        pool = TaskPool(
            env=self.env,
            split=self.split,
            ids=chosen,
            categories=(self.category_names, self.category_codes[positions]),
            payload=lambda index: self._payload(where[index]),
            source=self.source,
            hardness=None if hardness is None else lambda index: hardness(where[index]),
            strip=self._strip,
            columns={name: [values[place] for place in where] for name, values in self.columns.items()},
            split_of=None if split_of is None else lambda index: split_of(where[index]),
        )
        pool._hidden, pool.origin, pool._whole, pool._unfit = self._hidden, self.origin, False, self._unfit
        return pool

    def without_answers(self, ids: Iterable[str]) -> TaskPool:
        """Return the pool of some tasks without their answers, for a client that may play but not grade them.

        Args:
            ids: Ids of the tasks.

        Returns:
            The pool; its tasks are not `graded`.
        """
        pool = self.subset(ids)
        pool._hidden = frozenset(pool.ids)
        return pool

    def to_dataset(
        self,
        template: PromptTemplate | None = None,
        *,
        env: EpisodeStarter | None = None,
        seed: int = 0,
        chat: bool = False,
    ) -> Dataset:
        """Return the tasks as a Hugging Face data set (extra `[data]`), one row each, in the pool's order.

        Args:
            template: Renders the first observation as a prompt; by default the prompt is the observation.
            env: The environment that plays the tasks; a pool that an environment loaded finds its own.
            seed: Seed of the episodes.
            chat: Whether a prompt is a list of one message.

        Returns:
            A data set with the columns `task`, `category`, `prompt`, `seed`, `env`, and those of the pool, such as `user`.

        Raises:
            OptionError: If the pool was made by hand and `env` is not given, or `template` is no template.
            MissingExtraError: If `datasets` is not installed.
        """
        if template is not None and not hasattr(template, "render_first"):
            raise OptionError(f"a template renders prompts, got {show_value(template)}")
        datasets = require("datasets", "data")
        if env is None and self.origin is None:
            raise OptionError("this pool was made by hand and does not know its environment: pass to_dataset(env=...)")
        opened: Any = env if env is not None or self.origin is None else self.origin.open_env(self)
        rows = []
        for place, task in enumerate(self):
            (episode,) = opened.reset_many([task], [seed])
            view = episode.view
            prompt = view.observation if template is None else template.render_first(opened.find_member(task), view)
            shown = [{"role": "user", "content": prompt}] if chat else prompt
            row = {"task": task.id, "category": task.category, "prompt": shown, "seed": seed, "env": self.env}
            rows.append({**{name: values[place] for name, values in self.columns.items()}, **row})
        return datasets.Dataset.from_list(rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskPool:
        """Return the pool itself, since it is immutable."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return _load_again, (self.origin, self.source, None if self._whole else list(self.ids), self._hidden)
        places = range(len(self.ids))
        hardness = None if self._hardness is None else [self._hardness(place) for place in places]
        payloads = [self._payload(place) for place in places]
        described = (self.env, self.split, self.ids, (self.category_names, self.category_codes), self.source)
        splits = None if self._split_of is None else [self._split_of(place) for place in places]
        return _restore, (described, payloads, hardness, self._strip, self._hidden, self.columns, splits, self._unfit)

    def _make_task(self, index: int) -> Task:
        identifier, payload = self.ids[index], self._payload(index)
        graded = identifier not in self._hidden
        if not graded and self._strip is not None:
            payload = self._strip(payload)
        hardness = None if self._hardness is None else self._hardness(index)
        category = self.category_names[self.category_codes[index]]
        split = self.split if self._split_of is None else self._split_of(index)
        return Task(identifier, self.env, split, category, payload, hardness, graded)

    @cached_property
    def _find(self) -> Callable[[str], int | None]:
        """A function from an id to its index or None; it looks into a table of all ids unless the index can be computed."""
        if isinstance(self.ids, TaskIds):
            return self.ids.find_position
        return {identifier: index for index, identifier in enumerate(self.ids)}.get


_PLAIN = (
    *(type(None), int, float, complex, str, bytes, Decimal, Fraction),
    *(date, time, timedelta, Enum, PurePath, np.generic),
)
"""Types whose `repr` is the same in every process and differs for different values."""


def represent(value: Any) -> str:
    """The text of a value that is the same in every process and differs for different values.

    >>> represent({"numbers": (1, 2.5), "names": {"b", "a"}})
    "{'numbers': (1, 2.5), 'names': {'a', 'b'}}"
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(represent, value))}]"
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is None:
            return f"({', '.join(map(represent, value))}{',' if len(value) == 1 else ''})"
        content = ", ".join(f"{name}={represent(item)}" for name, item in zip(names, value, strict=True))
        return f"{type(value).__name__}({content})"
    if isinstance(value, Mapping):
        content = ", ".join(f"{represent(key)}: {represent(item)}" for key, item in value.items())
        return f"{{{content}}}" if type(value) is dict else f"{type(value).__name__}({{{content}}})"
    if isinstance(value, Set):
        content = ", ".join(sorted(map(represent, value), key=lambda text: (len(text), text)))
        text = f"{{{content}}}" if value else ""
        return text if type(value) is set and value else f"{type(value).__name__}({text})"
    if is_dataclass(value) and not isinstance(value, type):
        named = [one.name for one in fields(value) if one.repr or one.compare]
        content = ", ".join(f"{name}={represent(getattr(value, name))}" for name in named)
        return f"{type(value).__qualname__}({content})"
    raise DataError(
        f"a payload holds a {type(value).__name__}, which looks different in every process: pass payload_key=, a function that "
        "returns a plain value for each payload, or make payloads JSON values or dataclasses"
    )


def _load_again(
    origin: PoolOrigin, source: Mapping[str, Any], ids: Sequence[str] | None, hidden: frozenset[str]
) -> TaskPool:
    """Load a pickled pool from its data, which must be unchanged."""
    pool = origin.load()
    if pool.source != source:
        raise DataError(
            f"the pool {pool.env} ({pool.split}) was pickled with other data: it had {source}, and here it has {pool.source}"
        )
    if ids is None:
        return pool
    chosen = pool.subset(ids)
    chosen._hidden = hidden
    return chosen


def _restore(
    described: tuple[str, str, Sequence[str], Labels, Mapping[str, Any]],
    payloads: Sequence[Any],
    hardness: Sequence[float | None] | None,
    strip: Callable[[Any], Any] | None,
    hidden: frozenset[str],
    columns: Mapping[str, Sequence[Value | None]],
    splits: Sequence[str] | None,
    unfit: Mapping[str, tuple[str, str]],
) -> TaskPool:
    """Load a pickled pool from its tasks."""
    env, split, ids, categories, source = described
    pool = TaskPool(
        env=env,
        split=split,
        ids=ids,
        categories=categories,
        payload=payloads.__getitem__,
        source=source,
        hardness=None if hardness is None else hardness.__getitem__,
        strip=strip,
        columns=columns,
        split_of=None if splits is None else splits.__getitem__,
    )
    pool._hidden, pool._unfit = hidden, unfit
    return pool


def _refuse_value(identifier: str, shown: str, name: str) -> DataError:
    return DataError(
        f"the task {identifier!r} has {shown} in the field {name!r}: clients are formed by texts or whole numbers "
        "that every task has"
    )


def describe_pool_words(pool: TaskPool) -> str:
    """The command-line words that open this pool's environment with its split, as far as the pool knows them."""
    origin = pool.origin
    options = {} if origin is None else dict(origin.options)
    options.pop("variant", None)
    return f"{format_env_words(pool.env, options)}{'' if pool.split == 'train' else f' --split {pool.split}'}"
