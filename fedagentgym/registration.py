"""Registration of gymnasium ids. Every id uses one entry point, which resolves `client_split=` and `client=` before it
calls the class, so that environments need no notion of clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import gymnasium

from fedagentgym.base.errors import OptionError, show_value
from fedagentgym.base.plugins import list_announced_ids
from fedagentgym.base.registry import Registry
from fedagentgym.envs import ENVIRONMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedagentgym.agents.presets import AgentFactory
    from fedagentgym.agents.text.prompts import Template
    from fedagentgym.algorithms.base import BaseAlgorithm
    from fedagentgym.experiment.trackers import Tracker
    from fedagentgym.federation.aggregation import AggregationRule
    from fedagentgym.federation.backends import OpenBackend
    from fedagentgym.learning.advantages import AdvantageEstimator
    from fedagentgym.learning.objectives import Objective
    from fedagentgym.partitions.client_split import ClientSplit

ENTRY_POINT = "fedagentgym.registration:make_env"


def register_all() -> None:
    """Register with gymnasium every environment of the registry, and the ids that installed packages announce.

    Repeated calls have no effect; nothing is imported.
    """
    for name in (*ENVIRONMENTS.names(), *list_announced_ids()):
        _register_with_gymnasium(name)


def register_env(env_id: str, target: str | type, *, replace: bool = False) -> None:
    """Add an environment of your own: `register_env("me/Maze-v0", "my_package.maze:MazeEnv")`."""
    if "/" not in env_id or "-v" not in env_id:
        raise OptionError(f"an environment id has the form 'namespace/Name-v0', got {env_id!r}")
    ENVIRONMENTS.register(env_id, target, replace=replace)
    gymnasium.registry.pop(env_id, None)
    _register_with_gymnasium(env_id)


def register_sampler(name: str, target: Any, *, replace: bool = False) -> None:
    """Add a sampler of client splits: a `Sampler` class, a function (table, clients, seed, **parameters), or
    "module:attribute"."""
    _load_registry("fedagentgym.partitions", "SAMPLERS").register(name, target, replace=replace)


def register_agent(name: str, target: str | AgentFactory, *, replace: bool = False) -> None:
    """Add an agent of your own: a function of its settings, the environment and a seed."""
    _load_registry("fedagentgym.agents", "AGENTS").register(name, target, replace=replace)


def register_advantage(name: str, target: str | type[AdvantageEstimator], *, replace: bool = False) -> None:
    """Add an advantage estimator of your own: a class derived from `AdvantageEstimator`."""
    _load_registry("fedagentgym.learning.advantages", "ADVANTAGES").register(name, target, replace=replace)


def register_objective(name: str, target: str | Objective, *, replace: bool = False) -> None:
    """Add an objective of your own: a function of a group of episodes that gives one number for each."""
    _load_registry("fedagentgym.learning.objectives", "OBJECTIVES").register(name, target, replace=replace)


def register_aggregation(name: str, target: str | type[AggregationRule], *, replace: bool = False) -> None:
    """Add an aggregation rule of your own: a settings class with `begin`, whose accumulator has `add` and `finish`."""
    _load_registry("fedagentgym.federation.aggregation", "AGGREGATION_RULES").register(name, target, replace=replace)


def register_backend(name: str, target: str | OpenBackend, *, replace: bool = False) -> None:
    """Add a backend of your own: a function that starts the processes in which clients run."""
    _load_registry("fedagentgym.federation.backends", "BACKENDS").register(name, target, replace=replace)


def register_tracker(name: str, target: str | Callable[..., Tracker], *, replace: bool = False) -> None:
    """Add a tracker of your own: a class with `start`, `log` and `finish`, which receives the numbers of every round."""
    _load_registry("fedagentgym.experiment.trackers", "TRACKERS").register(name, target, replace=replace)


def register_template(name: str, target: str | type[Template], *, replace: bool = False) -> None:
    """Add a prompt template of your own: a class derived from `Template`."""
    _load_registry("fedagentgym.agents.text.prompts", "TEMPLATES").register(name, target, replace=replace)


def register_algorithm(name: str, target: str | type[BaseAlgorithm[Any]], *, replace: bool = False) -> None:
    """Add a federated algorithm of your own."""
    _load_registry("fedagentgym.algorithms", "ALGORITHMS").register(name, target, replace=replace)


def make_env(
    env_id: str, *, client_split: ClientSplit | str | Path | None = None, client: int | None = None, **options: Any
) -> gymnasium.Env[str, str]:
    """The entry point for `gymnasium.make`. With `client_split=` and `client=`: the tasks and the variant of one client, and
    beside them only options that change no task."""
    from fedagentgym.envs.options import check_options

    if (client_split is None) != (client is None):
        raise OptionError("client_split= and client= belong together: give both or neither")
    if client_split is not None and client is not None:
        from fedagentgym.partitions.client_split import ClientSplit, resolve_client_kwargs

        if not isinstance(client_split, ClientSplit | str | Path):
            raise OptionError(f"client_split= is a split or the path of its file, got {show_value(client_split)}")
        if isinstance(client, bool) or not isinstance(client, SupportsIndex):
            raise OptionError(f"client= is the number of a client, got {show_value(client)}")
        options = resolve_client_kwargs(env_id, client_split, client, options)
    cls = ENVIRONMENTS.get(env_id)
    made: gymnasium.Env[str, str] = cls(**check_options(cls, env_id, options))
    return made


def _register_with_gymnasium(env_id: str) -> None:
    if env_id not in gymnasium.registry:
        gymnasium.register(id=env_id, entry_point=ENTRY_POINT, kwargs={"env_id": env_id})


def _load_registry(module: str, name: str) -> Registry:
    import importlib

    registry: Registry = getattr(importlib.import_module(module), name)
    return registry
