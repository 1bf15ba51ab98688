"""Environments, client splits and a trainer for federated reinforcement learning of LLM agents.

Importing this package registers the environment ids with gymnasium and imports nothing heavy; all other modules are imported
on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedagentgym.registration import register_all, register_env
from fedagentgym.version import __version__

if TYPE_CHECKING:
    from fedagentgym.agents.players.function import FunctionAgent
    from fedagentgym.envs.variants import register_variant
    from fedagentgym.experiment.agent_file import load_agent
    from fedagentgym.experiment.run import train
    from fedagentgym.experiment.settings import RunConfig
    from fedagentgym.learning.evaluation import evaluate
    from fedagentgym.learning.rollouts import collect
    from fedagentgym.partitions.client_split import federate, load_client_split
    from fedagentgym.registration import (
        register_advantage,
        register_agent,
        register_aggregation,
        register_algorithm,
        register_backend,
        register_objective,
        register_sampler,
    )

_LAZY = {
    "FunctionAgent": "fedagentgym.agents.players.function",
    "collect": "fedagentgym.learning.rollouts",
    "evaluate": "fedagentgym.learning.evaluation",
    "federate": "fedagentgym.partitions",
    "load_agent": "fedagentgym.experiment.agent_file",
    "load_client_split": "fedagentgym.partitions",
    "register_variant": "fedagentgym.envs.variants",
    **dict.fromkeys(
        (
            "register_advantage",
            "register_agent",
            "register_aggregation",
            "register_algorithm",
            "register_backend",
            "register_objective",
            "register_sampler",
        ),
        "fedagentgym.registration",
    ),
    "train": "fedagentgym.experiment.run",
    "RunConfig": "fedagentgym.experiment.settings",
}

__all__ = [
    "FunctionAgent",
    "RunConfig",
    "__version__",
    "collect",
    "evaluate",
    "federate",
    "load_agent",
    "load_client_split",
    "register_advantage",
    "register_agent",
    "register_aggregation",
    "register_algorithm",
    "register_backend",
    "register_env",
    "register_objective",
    "register_sampler",
    "register_variant",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fedagentgym' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


register_all()
