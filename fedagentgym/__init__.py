"""Environments, client splits and a trainer for federated reinforcement learning of LLM agents.

Importing this package registers the environment ids with gymnasium and loads nothing heavy; everything else is imported
when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from fedagentgym.registration import register_all, register_env
from fedagentgym.version import __version__

_LAZY = {
    "federate": "fedagentgym.partitions",
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

__all__ = ["__version__", "register_env", *_LAZY]  # noqa: PLE0604 - the lazy names are strings of a dictionary


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fedagentgym' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


register_all()
