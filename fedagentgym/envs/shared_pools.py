"""Pools that the environments of one process share: a thousand environments with the same options hold one pool.

This also makes pools and environments picklable: a pool that an environment loaded is written as the options that it was
loaded with, not as its tasks, and is loaded (or found in memory) when it is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedagentgym.base.encoding import canonical_json
from fedagentgym.base.errors import DataError
from fedagentgym.envs.pool import TaskPool
from fedagentgym.envs.registry import format_env_words

MOST_POOLS = 16
_INDEPENDENT = ("split", "tasks", "pool", "max_turns", "reward", "render_mode")
"""Options of every environment on which no pool depends; the split is passed separately."""

_pools: OrderedDict[tuple[type, str, str], TaskPool] = OrderedDict()
_lock = threading.RLock()


class PoolOrigin(NamedTuple):
    """The environment class, the options and the split that a pool was loaded with."""

    environment: type
    options: Mapping[str, Any]
    split: str

    def load(self) -> TaskPool:
        """The pool again: the shared one, or loaded from its data."""
        made: Any = self.environment(**{**self.options, "split": self.split})
        pool: TaskPool = made.pool
        return pool

    def open_env(self, pool: TaskPool) -> Any:
        """The environment with these options, playing this pool or a part of it."""
        return self.environment(**{**self.options, "split": self.split, "pool": pool})


def select_pool_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an environment on which its pool may depend."""
    return {name: value for name, value in options.items() if name not in _INDEPENDENT}


def describe_pool_words(pool: TaskPool) -> str:
    """The command-line words that open this pool's environment with its split, as far as the pool knows them."""
    origin = pool.origin
    options = dict(origin.options) if isinstance(origin, PoolOrigin) else {}
    options.pop("variant", None)
    return f"{format_env_words(pool.env, options)}{'' if pool.split == 'train' else f' --split {pool.split}'}"


def find_or_load_pool(origin: PoolOrigin, load: Callable[[], TaskPool]) -> TaskPool:
    """The pool of this origin: the one in memory, or the one that `load` returns."""
    try:
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in origin.options.items()}
        key = (origin.environment, origin.split, canonical_json(plain))
    except DataError:  # an option that is no plain value, such as a function: such options cannot be compared
        return load()
    with _lock:
        if key in _pools:
            _pools.move_to_end(key)
            return _pools[key]
        pool = _pools[key] = load()
        if len(_pools) > MOST_POOLS:
            _pools.popitem(last=False)
        return pool
