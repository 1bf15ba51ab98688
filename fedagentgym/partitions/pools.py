"""The pools that client splits divide: which may be divided, how they are opened, and which options are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedagentgym.base.errors import OptionError
from fedagentgym.envs import ENVIRONMENTS, open_env
from fedagentgym.envs.core import TextEnv
from fedagentgym.envs.pool import TaskPool


def env_class(env_id: str) -> type[TextEnv]:
    """The class of an environment, for its declarations."""
    found: type[TextEnv] = ENVIRONMENTS.get(env_id)
    return found


def refuse_evaluation(cls: type[TextEnv], split: str) -> None:
    """Raise for evaluation splits, which are never divided among clients."""
    if split in cls.evaluation_splits or split == "all":
        raise OptionError(
            f"the split {split!r} is for evaluation or holds such tasks, and those are never divided among clients: use 'train'"
        )


def open_pool(env_id: str, split: str, options: Mapping[str, Any]) -> TaskPool:
    """The pool that the environment loads under these options."""
    env = open_env(env_id, **{**options, "split": split})
    pool = env.pool
    env.close()
    return pool
