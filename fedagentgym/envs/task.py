"""Tasks: one problem of one environment as a plain value, its id, and the value that names a whole set of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedagentgym.base.encoding import digest


@dataclass(frozen=True, slots=True)
class Task:
    """One problem that an episode is about.

    `payload` is the environment's own reference (a goal's index, a game, a question with its gold answer). `graded` is
    False if the holder may play the task but does not know its gold: accuracies and the score are then always 0.
    """

    id: str
    env: str
    split: str
    category: str
    payload: Any = None
    hardness: float | None = None
    graded: bool = True


@dataclass(frozen=True, eq=False)
class TaskSet:
    """Names tasks, so that nobody can mistake others for them: two sets are equal if they hold the same tasks in the same order.

    A client split and its clients carry one; `env.task_set` is that of an environment. An environment that is made with
    `tasks=` such a set compares its own pool with it, since equal ids alone do not mean equal tasks.

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

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskSet) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def describe(self) -> dict[str, Any]:
        """Plain values for records: the number and the digest of the ids stand for them."""
        named = {"env": self.env, "options": dict(self.options), "split": self.split, "pool": self.pool}
        return {**named, "tasks": len(self.ids), "ids": digest(list(self.ids))}

    @cached_property
    def digest(self) -> str:
        """The identity of these tasks, for records."""
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
