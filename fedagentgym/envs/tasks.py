"""Tasks: one problem of one environment as a plain value, its id and fields, and the value that names a set of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, NamedTuple

from fedagentgym.base.encoding import digest, to_plain_numbers
from fedagentgym.base.errors import DataError, show_value
from fedagentgym.base.shorten import show_fields

UNSEEN = "unseen"
"""The split with tasks of templates or kinds that no other split has; not every environment has this split."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment: the problem that an episode is about.

    Attributes:
        id: Its id, such as `guess/train/00042`.
        env: Id of its environment.
        split: Its split.
        category: Its category, by which clients can differ.
        payload: What the environment needs to play it: a goal, a game, a question with its answer.
        hardness: How hard it is, if the data says; larger is harder.
        graded: False if a client may play the task but does not have its answer. Accuracies and the score are then 0.
    """

    id: str
    env: str
    split: str
    category: str
    payload: Any = None
    hardness: float | None = None
    graded: bool = True

    def __repr__(self) -> str:
        return show_fields(self)


@dataclass(frozen=True, eq=False)
class TaskSet:
    """The identity of a sequence of tasks: two sets are equal if they hold the same tasks in the same order.

    A client split and each of its clients have a task set, and so has an environment (`env.task_set`). An environment that is
    made with a task set as `tasks=` compares the digest of its own pool with it, since equal ids alone do not mean equal tasks.

    Attributes:
        env: Id of the environment.
        options: Every option that decides the tasks, with its value, given or by default. Paths are left out.
        split: Name of the split, such as `train`.
        pool: Digest of the split's pool under these options.
        ids: Ids of the tasks, in order.
    """

    env: str
    options: Mapping[str, Any]
    split: str
    pool: str
    ids: Sequence[str]

    def __repr__(self) -> str:
        return show_fields(self)

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskSet) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def describe(self) -> dict[str, Any]:
        """Return plain values for records, with the number and the digest of the ids in place of the ids."""
        named = {"env": self.env, "options": dict(self.options), "split": self.split, "pool": self.pool}
        return {**named, "tasks": len(self.ids), "ids": digest(list(self.ids))}

    @cached_property
    def digest(self) -> str:
        """The digest that identifies these tasks in records."""
        return digest(self.describe())


def plain_name(env_id: str) -> str:
    """The name of an environment without namespace and version.

    >>> plain_name("fedagentgym/WebShop-v0")
    'WebShop'
    """
    return env_id.rpartition("/")[2].partition("-v")[0]


def shorten_env_id(env_id: str) -> str:
    """The name of an environment inside task ids.

    >>> shorten_env_id("fedagentgym/WebShop-v0")
    'webshop'
    """
    return plain_name(env_id).lower()


def make_task_id(env_id: str, split: str, index: int) -> str:
    """The id of the index-th task of a split.

    >>> make_task_id("fedagentgym/WebShop-v0", "train", 42)
    'webshop/train/00042'
    """
    return f"{shorten_env_id(env_id)}/{split}/{index:05d}"


class TaskIds(Sequence[str]):
    """The ids of the first `count` tasks of a split, made on demand, so that a million ids need no memory.

    >>> TaskIds("fedagentgym/Math-v0", "val", 3)[-1]
    'math/val/00002'
    """

    def __init__(self, env: str, split: str, count: int) -> None:
        self._env, self._split, self._count = env, split, count
        self._prefix = make_task_id(env, split, 0)[:-5]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [f"{self._prefix}{position:05d}" for position in range(*index.indices(self._count))]
        position = index + self._count if index < 0 else index
        if not 0 <= position < self._count:
            raise IndexError(index)
        return f"{self._prefix}{position:05d}"

    def __iter__(self) -> Iterator[str]:
        prefix = self._prefix
        return (f"{prefix}{position:05d}" for position in range(self._count))

    def find_position(self, identifier: str) -> int | None:
        """The index of an id, computed without a table of all ids; None if it is no id of the split."""
        number = identifier.removeprefix(self._prefix)
        if number == identifier or not (number.isascii() and number.isdigit()):
            return None
        if len(number) > len(f"{self._count:05d}"):
            return None
        position = int(number)
        return position if position < self._count and f"{position:05d}" == number else None


class Place(NamedTuple):
    """The split of a generated task and its number within that split, also in a pool of all splits."""

    split: str
    number: int


def lay_out_tasks(env_id: str, split: str, sizes: Mapping[str, int]) -> tuple[Sequence[str], list[Place]]:
    """The id and the place of each task of a split; for `all`, one split follows the other."""
    parts = list(sizes) if split == "all" else [split]
    places = [Place(part, number) for part in parts for number in range(sizes[part])]
    if split != "all":
        return TaskIds(env_id, split, sizes[split]), places
    return [make_task_id(env_id, *place) for place in places], places


# ---- payloads as plain values ------------------------------------------------------------------------------------------


def to_plain_payload(payload: Any) -> Any:
    """A payload as plain values: records become mappings, sets and tuples lists."""
    if hasattr(payload, "_asdict"):
        return {name: to_plain_payload(value) for name, value in payload._asdict().items()}
    if is_dataclass(payload) and not isinstance(payload, type):
        return {one.name: to_plain_payload(getattr(payload, one.name)) for one in fields(payload) if one.init}
    if isinstance(payload, Mapping):
        return {str(name): to_plain_payload(value) for name, value in payload.items()}
    if isinstance(payload, tuple | list):
        return [to_plain_payload(item) for item in payload]
    if isinstance(payload, Set):
        return sorted(to_plain_payload(item) for item in payload)
    return payload


def from_plain_payload(plain: Any, kind: Any) -> Any:
    """A payload of this type (`TextEnv.payload_type`) from plain values; `DataError` if they do not fit."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(plain)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise DataError(f"a payload does not fit this environment: {place}: {fault['msg']}") from None


# ---- fields: columns of a pool, and values of payloads, by which clients can be formed --------------------------------


Value = str | int


def is_value(value: object) -> bool:
    """Return whether tasks can be grouped by a value, which must be a text or a whole number."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def collect_columns(rows: Sequence[Mapping[str, Any]], known: Sequence[str]) -> dict[str, tuple[Value | None, ...]]:
    """The fields of records other than the known ones, if every record has a text, a whole number or nothing there."""
    names = sorted({name for row in rows for name in row if name not in known})
    columns = {name: tuple(to_plain_numbers(row.get(name)) for row in rows) for name in names}
    return {
        name: values
        for name, values in columns.items()
        if all(value is None or is_value(value) for value in values) and set(values) != {None}
    }


def find_unfit_values(
    rows: Sequence[Mapping[str, Any]], known: Sequence[str], ids: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """The fields of records that are no columns because of a value: the first task with such a value, and the value for a
    message."""
    found: dict[str, tuple[str, str]] = {}
    for identifier, row in zip(ids, rows, strict=True):
        for name, given in row.items():
            value = to_plain_numbers(given)
            if name not in known and name not in found and value is not None and not is_value(value):
                found[name] = (identifier, show_value(value))
    return found


def list_payload_fields(payload: object) -> list[str]:
    """The names of a payload's fields whose values are texts or whole numbers."""
    return [name for name in _get_names(payload) if is_value(get_payload_field(payload, name))]


def get_payload_field(payload: object, name: str) -> Any:
    """Return the entry of a mapping, or the field of a record, that has this name in a payload; None if there is none."""
    if name not in _get_names(payload):
        return None
    return payload[name] if isinstance(payload, Mapping) else getattr(payload, name)


def _get_names(payload: object) -> Sequence[str]:
    if isinstance(payload, Mapping):
        return [name for name in payload if isinstance(name, str)]
    if isinstance(payload, tuple):
        return getattr(payload, "_fields", ())
    if is_dataclass(payload):
        return [field.name for field in fields(payload)]
    return ()
