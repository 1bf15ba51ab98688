"""A task: one thing to be solved in one world. A plain value that a split file can name by its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """What an episode is about.

    `payload` is the environment's own reference (a goal's index, a game, a question with its gold answer). `graded` is
    False where the holder may play the task but does not know its gold: accuracies and the score are then always 0.
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


def short_name(env_id: str) -> str:
    """The name of an environment inside task ids.

    >>> short_name("fedagentgym/WebShop-v0")
    'webshop'
    """
    return plain_name(env_id).lower()


def task_id(env_id: str, split: str, index: int) -> str:
    """The id of the index-th task of a split.

    >>> task_id("fedagentgym/WebShop-v0", "train", 42)
    'webshop/train/00042'
    """
    return f"{short_name(env_id)}/{split}/{index:05d}"
