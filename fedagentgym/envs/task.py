"""A task: one problem of one environment. A plain value that a split file can refer to by its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
