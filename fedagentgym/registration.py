"""Registration of gymnasium ids. All ids share one entry point. It resolves `client_split=` and `client=` before it makes
the environment, so that classes of environments need not know about clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import gymnasium

from fedagentgym.base.errors import OptionError, show_value
from fedagentgym.base.imports import Registry, is_env_id, list_announced_ids
from fedagentgym.envs import ENVIRONMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedagentgym.agents.players.own import Agent
    from fedagentgym.agents.presets import AgentFactory
    from fedagentgym.agents.text.prompts import Template
    from fedagentgym.algorithms.base import BaseAlgorithm
    from fedagentgym.envs.core import TextEnv
    from fedagentgym.experiment.trackers import Tracker
    from fedagentgym.federation.aggregation import AggregationRule
    from fedagentgym.federation.backends import OpenBackend
    from fedagentgym.learning.advantages import AdvantageEstimator, Objective
    from fedagentgym.learning.losses import PolicyLoss
    from fedagentgym.partitions.client_split import ClientSplit

ENTRY_POINT = "fedagentgym.registration:make_env"


def register_all() -> None:
    """Register with gymnasium every environment of the registry, and the ids that installed packages announce.

    Repeated calls have no effect, and no environment's module is imported.
    """
    for name in (*ENVIRONMENTS.names(), *list_announced_ids()):
        _register_with_gymnasium(name)


def register_env(env_id: str, target: str | type, *, replace: bool = False) -> None:
    """Register an environment of your own with gymnasium and with this package.

    Args:
        env_id: Its id, in the form `namespace/Name-v0`.
        target: A class derived from `TextEnv`, or `"module:Class"`, which is imported when the environment is first made.
        replace: Whether to replace an id that is already registered.

    Raises:
        OptionError: If the id has another form, is already registered without `replace`, or differs from the class's `id`, or
            if the target is a string of another form.

    Examples:
        >>> register_env("me/Maze-v0", "my_package.maze:MazeEnv")  # doctest: +SKIP
    """
    if not is_env_id(env_id):
        raise OptionError(f"an environment id has the form 'namespace/Name-v0', got {show_value(env_id)}")
    if not isinstance(target, str):
        from fedagentgym.envs.make import check_env_class

        check_env_class(env_id, target)
    ENVIRONMENTS.register(env_id, target, replace=replace)
    gymnasium.registry.pop(env_id, None)
    _register_with_gymnasium(env_id)


def register_sampler(name: str, target: Any, *, replace: bool = False) -> None:
    """Register a sampler of client splits, for `federate(partition=name)`.

    Args:
        name: Name in configurations and split files.
        target: A class derived from `Sampler`, a function `(table, clients, seed, **parameters)` that returns a list of task
            ids for each client, or `"module:attribute"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, the target is a string of another form, or a parameter
            has the name of an argument of `federate`.
    """
    if not isinstance(target, str):
        from fedagentgym.partitions.division import check_parameter_names

        check_parameter_names(name, target)
    _load_registry("fedagentgym.partitions", "SAMPLERS").register(name, target, replace=replace)


def register_agent(name: str, target: str | type[Agent] | AgentFactory, *, replace: bool = False) -> None:
    """Register an agent, for `make_agent(name)` and `agent.name` in configurations.

    Args:
        name: Name in configurations.
        target: A class derived from `Agent`, whose arguments are `agent.options`; a function `(settings, *, env=None, seed=0)`
            that returns an agent; or `"module:attribute"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.agents", "AGENTS").register(name, target, replace=replace)


def register_advantage(name: str, target: str | type[AdvantageEstimator], *, replace: bool = False) -> None:
    """Register an advantage estimator, for `learning.advantage` in configurations.

    Args:
        name: Name in configurations.
        target: A class derived from `AdvantageEstimator`, or `"module:Class"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.learning.advantages", "ADVANTAGES").register(name, target, replace=replace)


def register_objective(name: str, target: str | Objective, *, replace: bool = False) -> None:
    """Register an objective of a group of episodes, for `learning.objectives` in configurations.

    Args:
        name: Name in configurations; a reward component of the environment with the same name takes precedence.
        target: A function that takes a group, a tuple of `Trajectory`, and returns one number for each of its episodes, or
            `"module:function"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.learning.advantages", "OBJECTIVES").register(name, target, replace=replace)


def register_loss(name: str, target: str | type[PolicyLoss], *, replace: bool = False) -> None:
    """Register a policy loss, for `learning.loss` in configurations.

    Args:
        name: Name in configurations.
        target: A class derived from `PolicyLoss`, or `"module:Class"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.learning.losses", "LOSSES").register(name, target, replace=replace)


def register_aggregation(name: str, target: str | type[AggregationRule], *, replace: bool = False) -> None:
    """Register an aggregation rule, for `algorithm.aggregation` in configurations.

    Args:
        name: Name in configurations.
        target: A class derived from `AggregationRule`, or `"module:Class"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.federation.aggregation", "AGGREGATION_RULES").register(name, target, replace=replace)


def register_backend(name: str, target: str | OpenBackend, *, replace: bool = False) -> None:
    """Register a backend, for `federation.backend` in configurations.

    Args:
        name: Name in configurations.
        target: A function that takes an `ApplicationSpec` and, by keyword, `folder`, `workers`, `application`,
            `device_per_worker`, `together` if it is set, and the entries of `federation.options`, and returns a `Backend`; or
            `"module:function"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.federation.backends", "BACKENDS").register(name, target, replace=replace)


def register_tracker(name: str, target: str | Callable[..., Tracker], *, replace: bool = False) -> None:
    """Register a tracker, for `output.trackers` in configurations: it receives the numbers of every round.

    Args:
        name: Name in configurations.
        target: A class with the methods `start`, `log` and `finish`, whose constructor takes the tracker's options, or
            `"module:Class"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.experiment.trackers", "TRACKERS").register(name, target, replace=replace)


def register_template(name: str, target: str | type[Template], *, replace: bool = False) -> None:
    """Register a prompt template, for `agent.template` in configurations.

    Args:
        name: Name in configurations.
        target: A class derived from `Template`, or `"module:Class"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.agents.text.prompts", "TEMPLATES").register(name, target, replace=replace)


def register_algorithm(name: str, target: str | type[BaseAlgorithm[Any]], *, replace: bool = False) -> None:
    """Register a federated method, for `algorithm` in configurations.

    Args:
        name: Name in configurations.
        target: A class derived from `BaseAlgorithm`, usually from `Averaging`, or `"module:Class"`.
        replace: Whether to replace a name that is already registered.

    Raises:
        OptionError: If the name is already registered without `replace`, or the target is a string of another form.
    """
    _load_registry("fedagentgym.algorithms", "ALGORITHMS").register(name, target, replace=replace)


def make_env(
    env_id: str, *, client_split: ClientSplit | str | Path | None = None, client: int | None = None, **options: Any
) -> TextEnv:
    """The entry point for `gymnasium.make`. With `client_split=` and `client=`, the environment has the tasks and the variant
    of one client, and the other options may not change a task."""
    if (client_split is None) != (client is None):
        raise OptionError("client_split= and client= belong together: give both or neither")
    if client_split is None or client is None:
        from fedagentgym.envs.make import open_env

        return open_env(env_id, **options)
    from fedagentgym.partitions.client_split import ClientSplit, open_split_client

    if not isinstance(client_split, ClientSplit | str | Path):
        raise OptionError(f"client_split= must be a split or the path of its file, got {show_value(client_split)}")
    if isinstance(client, bool) or not isinstance(client, SupportsIndex):
        raise OptionError(f"client= is the number of a client, got {show_value(client)}")
    return open_split_client(env_id, client_split, client, options)


def _register_with_gymnasium(env_id: str) -> None:
    if env_id not in gymnasium.registry:
        gymnasium.register(id=env_id, entry_point=ENTRY_POINT, kwargs={"env_id": env_id})


def _load_registry(module: str, name: str) -> Registry:
    import importlib

    registry: Registry = getattr(importlib.import_module(module), name)
    return registry
