"""Environments and their tasks. Imports nothing about clients or models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedagentgym.envs.registry import DATA_SETS, ENVIRONMENTS

if __name__ != "fedagentgym.envs":
    raise ImportError("the folder `envs` at the root is a link for readers: import fedagentgym.envs instead")

if TYPE_CHECKING:
    from fedagentgym.envs.core import TextEnv

__all__ = ["DATA_SETS", "ENVIRONMENTS", "open_env"]


def open_env(env_id: str, **options: Any) -> TextEnv:
    """The environment of this id without gymnasium's wrappers, for code that plays thousands of episodes.

    >>> open_env("fedagentgym/Guess-v0", split="val").split_sizes()["val"]
    60
    """
    import gymnasium

    from fedagentgym.base.errors import OptionError
    from fedagentgym.envs.core import TextEnv

    ENVIRONMENTS.get_target(env_id)  # an unknown id raises an error that lists the known ones
    made = gymnasium.make(env_id, disable_env_checker=True, **options).unwrapped
    if not isinstance(made, TextEnv):
        raise OptionError(f"{env_id} is no text environment: {type(made).__name__} is not derived from TextEnv")
    return made
